"""The banner of ``onceward serve`` proposes a command that reaches a handler."""

from collections.abc import Callable

import msgspec
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


class Invoice(msgspec.Struct):
    """A model that Stripe's example fits."""

    data: dict[str, object]


class Order(msgspec.Struct):
    """A model that Stripe's example does not fit."""

    order: int


def test_an_example_that_does_not_fit_the_model_is_replaced(inbox: Inbox, banner: Banner) -> None:
    inbox.on("charge.*", source="stripe", model=Order)(handle)
    shown = banner(inbox)
    assert "--times 2 --type charge.example --data event.json\n" in shown
    line = handle.__code__.co_firstlineno
    place = f"(tests/integration/test_banner.py:{line})"
    note = "event.json is a body of your own, which fits the model of handler 'handle'"
    assert f"  {note} {place}.\n" in shown


def test_a_handler_whose_model_fits_the_example_comes_first(inbox: Inbox, banner: Banner) -> None:
    inbox.on("charge.*", source="stripe", model=Order, name="other")(handle)
    inbox.on("invoice.paid", source="stripe", model=Invoice)(handle)
    shown = banner(inbox)
    assert "--times 2\n" in shown
    assert "event.json" not in shown
