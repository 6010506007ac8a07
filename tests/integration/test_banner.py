"""The banner of ``onceward serve`` proposes a command that reaches a handler."""

from collections.abc import Callable

import pytest

from onceward import Inbox
from onceward.cli._banner import announce

ADDRESS = "http://127.0.0.1:3000"
Banner = Callable[[Inbox], str]


async def handle() -> None:
    """Do nothing."""


@pytest.fixture
def inbox(sqlite_url: str) -> Inbox:
    """Return an inbox with a source that the app can sign for, and one that it cannot."""
    inbox = Inbox(sqlite_url)
    inbox.source("discord", secrets=["5f1c" * 16])
    inbox.source("stripe", secrets=["whsec_example"])
    return inbox


@pytest.fixture
def banner(capsys: pytest.CaptureFixture[str]) -> Banner:
    """Return the banner of an inbox."""

    def show(inbox: Inbox) -> str:
        announce(inbox.service(dev=True), "my app.py", ADDRESS, None, as_json=False)
        return capsys.readouterr().out

    return show


def test_handlers_that_are_all_limited_to_a_source_get_a_webhook(
    inbox: Inbox, banner: Banner
) -> None:
    inbox.on("*", source="discord", name="greet")(handle)
    inbox.on("invoice.paid", source="stripe")(handle)
    shown = banner(inbox)
    assert f"\n  onceward send stripe --app 'my app.py' --to {ADDRESS} --times 2\n" in shown
    assert "curl http://127.0.0.1:3000/events/ingest" not in shown


def test_the_webhook_has_a_type_of_the_handler(inbox: Inbox, banner: Banner) -> None:
    inbox.on("charge.*", source="stripe")(handle)
    assert "--times 2 --type charge.example\n" in banner(inbox)


def test_one_handler_without_a_source_gets_an_event(inbox: Inbox, banner: Banner) -> None:
    inbox.on("invoice.paid", source="stripe")(handle)
    inbox.on("order.paid", name="any")(handle)
    shown = banner(inbox)
    assert f"curl {ADDRESS}/events/ingest" in shown
    assert '"event_type":"order.paid"' in shown
    assert "onceward send" not in shown
