"""A subscription is confirmed by fetching a URL of Amazon's, and no other."""

from datetime import UTC, datetime
from typing import Any

import pytest

from onceward import Event, Inbox, PermanentError
from onceward.work.builtin.sns_confirmation import confirm
from tests.keys import TOPIC, rsa_pair

GOOD = "https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&Token=2336"


def event(payload: Any) -> Event[Any]:
    return Event("1", "sns", "T", None, datetime.now(UTC), b"", {}, lambda: payload)


async def test_the_url_is_fetched() -> None:
    asked: list[str] = []

    def get(url: str) -> int:
        asked.append(url)
        return 200

    await confirm(event({"SubscribeURL": GOOD}), get)
    assert asked == [GOOD]


@pytest.mark.parametrize(
    "url",
    [
        None,
        7,
        "http://sns.eu-central-1.amazonaws.com/",
        "https://sns.eu-central-1.amazonaws.com.evil.example/",
        "https://evil.example/?sns.eu-central-1.amazonaws.com",
        "https://sns.eu-central-1.amazonaws.com@evil.example/",
        "https://sns.eu-central-1.amazonaws.com:8443/",
        "https://127.0.0.1/",
    ],
)
async def test_nothing_else_is(url: object) -> None:
    def get(_: str) -> int:
        raise AssertionError("it was fetched")

    with pytest.raises(PermanentError, match="not a URL of Amazon SNS"):
        await confirm(event({"SubscribeURL": url}), get)
    with pytest.raises(PermanentError):
        await confirm(event([]), get)


async def test_a_refusal_is_tried_again() -> None:
    with pytest.raises(RuntimeError, match="403"):
        await confirm(event({"SubscribeURL": GOOD}), lambda _: 403)


def test_the_preset_brings_its_handler_along() -> None:
    inbox = Inbox("sqlite:///x.db")
    inbox.source("alarms", preset="aws-sns", secrets=[f"{TOPIC}:{rsa_pair().public}"])
    service = inbox.service()
    (handler,) = service.handlers.values()
    assert handler.name == "alarms-confirm_subscription"
    assert [(it.pattern, it.source) for it in handler.routes] == [
        ("SubscriptionConfirmation", "alarms")
    ]
