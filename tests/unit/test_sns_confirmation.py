"""A subscription is confirmed by fetching the URL in the message, if it is Amazon's."""

from typing import Any

import pytest

from onceward import Event, Inbox, PermanentError
from onceward.work.builtin.sns_confirmation import confirm
from tests.factories import make_event
from tests.keys import TOPIC, rsa_pair

CONFIRM_URL = "https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&Token=2336"


def event(payload: Any) -> Event[Any]:
    return make_event("sns", payload)


@pytest.mark.parametrize(
    "host",
    [
        "sns.eu-central-1.amazonaws.com",
        "sns.us-gov-west-1.amazonaws.com",
        "sns.cn-north-1.amazonaws.com.cn",
    ],
)
async def test_the_confirmation_url_is_fetched(host: str) -> None:
    fetched: list[str] = []

    def get(url: str) -> int:
        fetched.append(url)
        return 200

    url = CONFIRM_URL.replace("sns.eu-central-1.amazonaws.com", host)
    await confirm(event({"SubscribeURL": url}), get)
    assert fetched == [url]


OTHER_URLS: list[object] = [
    None,
    7,
    "http://sns.eu-central-1.amazonaws.com/",
    "https://sns.eu-central-1.amazonaws.com.evil.example/",
    "https://evil.example/?sns.eu-central-1.amazonaws.com",
    "https://sns.eu-central-1.amazonaws.com@evil.example/",
    "https://sns.eu-central-1.amazonaws.com:8443/",
    "https://127.0.0.1/",
    "https://sns.s3.amazonaws.com/a-bucket-of-somebody",
    "https://sns.s3-eu-west-1.amazonaws.com/",
    "https://sns.eu-central-1.amazonaws.com\\@evil.example/",
    "https://sns.eu-central-1\t.amazonaws.com/",
    "https://sns.eu-central-1.amazonaws.com/\r\nX-Header: 1",
    "https://user@sns.eu-central-1.amazonaws.com/",
    "https://[/",
]


async def test_no_other_url_is_fetched(subtests: pytest.Subtests) -> None:
    for url in OTHER_URLS:
        with subtests.test(url=url):

            def get(_: str) -> int:
                raise AssertionError("the URL was fetched")

            with pytest.raises(PermanentError, match="not a URL of Amazon SNS"):
                await confirm(event({"SubscribeURL": url}), get)
            with pytest.raises(PermanentError):
                await confirm(event([]), get)


async def test_a_refused_confirmation_raises_a_transient_error() -> None:
    with pytest.raises(RuntimeError, match="403"):
        await confirm(event({"SubscribeURL": CONFIRM_URL}), lambda _: 403)


def test_the_preset_registers_the_handler() -> None:
    inbox = Inbox("sqlite:///x.db")
    inbox.source("alarms", preset="aws-sns", secrets=[f"{TOPIC}:{rsa_pair().public}"])
    service = inbox.service()
    (handler,) = service.handlers.values()
    assert handler.name == "alarms-confirm_subscription"
    assert [(route.pattern, route.source) for route in handler.routes] == [
        ("SubscriptionConfirmation", "alarms")
    ]
