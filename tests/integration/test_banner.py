"""The banner of ``onceward serve``: its addresses work, and its command reaches a handler."""

import re
from collections.abc import Callable

import msgspec
import pytest

from onceward import Inbox
from onceward.cli._announcement import announce
from onceward.operate.filters import LISTS
from tests.integration.running import RunningInbox
from tests.receiver import SECRET

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


def test_the_admin_address_lists_the_lists(
    inbox: Inbox, banner: Banner, service: RunningInbox
) -> None:
    (path,) = re.findall(rf"Admin +{ADDRESS}(\S+)", banner(inbox))
    for each in (path, f"{path}/"):
        index = service.http.get(each).json()
        assert index["look"] == [f"/admin/{kind}" for kind in LISTS]
        assert service.http.get(index["document"]).json()["openapi"]


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


def test_an_inline_source_is_marked(inbox: Inbox, banner: Banner) -> None:
    inbox.source("shop", preset="hmac", secrets=["whsec_example"], mode="inline")
    inbox.source("github", secrets=["whsec_example"], mode="inline")
    shown = banner(inbox)
    assert "/webhooks/shop  (hmac; inline: handlers run within the request)\n" in shown
    assert "/webhooks/github  (inline: handlers run within the request)\n" in shown
    assert "/webhooks/stripe\n" in shown


def test_filters_are_shown_and_the_example_passes_them(inbox: Inbox, banner: Banner) -> None:
    inbox.on("order.paid", when={"data.status": ["paid", "sent"], "test": False})(handle)
    inbox.on("order.*", name="chosen", when=lambda event: event.id == "a")(handle)
    shown = banner(inbox)
    assert "handle ← order.paid when data.status is 'paid' or 'sent' and test is False\n" in shown
    assert "chosen ← order.* when (" in shown
    assert '"payload":{"data":{"status":"paid"},"test":false}' in shown


def test_a_webhook_that_a_filter_rejects_is_not_proposed(inbox: Inbox, banner: Banner) -> None:
    inbox.on("invoice.paid", source="stripe", when={"livemode": "never"})(handle)
    shown = banner(inbox)
    assert "--data event.json" in shown
    assert "event.json is a body of your own, which passes the filter of handler 'handle'" in shown


def test_programs_read_the_filters(inbox: Inbox, capsys: pytest.CaptureFixture[str]) -> None:
    inbox.on("order.paid", when={"a": 1})(handle)
    inbox.on("order.*", name="chosen", when=lambda event: event.id == "a")(handle)
    announce(inbox.service(dev=True), "app.py", ADDRESS, None, as_json=True)
    info = msgspec.json.decode(capsys.readouterr().out)
    assert info["filters"] == {"handle": '{"a":[1]}', "chosen": "function"}


def test_a_forward_is_shown_with_its_target_but_not_its_query(
    inbox: Inbox, banner: Banner, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox.forward(
        "invoice.*", to="https://app.example/hooks?token=hidden", secret=SECRET, name="billing"
    )
    shown = banner(inbox)
    assert "billing ← invoice.* → https://app.example/hooks\n" in shown
    announce(inbox.service(dev=True), "app.py", ADDRESS, None, as_json=True)
    facts = msgspec.json.decode(capsys.readouterr().out)
    assert facts["forwards"] == {"billing": "https://app.example/hooks"}
    assert "hidden" not in shown + str(facts)
