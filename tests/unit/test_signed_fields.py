"""Providers that sign fields and not bytes: what is signed can be read in one way only."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

import onceward
from onceward.errors import SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.request import Headers, Request
from tests.keys import HEX, TOPIC, rsa_pair

NOW = 1_760_000_000

Item = dict[str, Any]

ITEM: Item = {
    "pspReference": "QFQTPCQ8HXSKGK82",
    "merchantAccountCode": "ExampleShopECOM",
    "merchantReference": "order:42:EUR",
    "amount": {"value": 1130, "currency": "EUR"},
    "eventCode": "AUTHORISATION",
    "success": "true",
}
ITEM_TEXT = "QFQTPCQ8HXSKGK82::ExampleShopECOM:order:42:EUR:1130:EUR:AUTHORISATION:true"


def adyen_ids(item: Item) -> list[str]:
    """Return the ids of the events in an item with the signature of `ITEM`."""
    signature = hmac.digest(bytes.fromhex(HEX), ITEM_TEXT.encode(), hashlib.sha256)
    proof = {"additionalData": {"hmacSignature": base64.b64encode(signature).decode()}}
    items = [{"NotificationRequestItem": item | proof}]
    body = json.dumps({"live": "false", "notificationItems": items}).encode()
    source = make_source("source", preset="adyen", secrets=[HEX])
    events = source.verify(Request(Headers([]), body), NOW)
    assert isinstance(events, list)
    return [event.identity.event_id for event in events]


def adyen_rejection(item: Item) -> str:
    with pytest.raises(SignatureRejected) as caught:
        adyen_ids(item)
    return caught.value.check


def test_the_reference_of_an_adyen_merchant_may_contain_colons() -> None:
    assert adyen_ids(ITEM) == ["QFQTPCQ8HXSKGK82|AUTHORISATION|true"]


ADYEN_CHANGES: list[tuple[Item, str]] = [
    ({"success": True}, 'success must be "true" or "false", as text'),
    ({"success": None}, 'success must be "true" or "false", as text'),
    ({"amount": {"value": "1130", "currency": "EUR"}}, "value must be a whole number"),
    ({"amount": {"value": 1130.0, "currency": "EUR"}}, "value must be a whole number"),
    ({"amount": {"value": True, "currency": "EUR"}}, "value must be a whole number"),
    ({"pspReference": 7}, "pspReference must be a string"),
    ({"eventCode": ["AUTHORISATION"]}, "eventCode must be a string"),
    (
        {
            "merchantReference": "order",
            "amount": {"value": 42, "currency": "EUR:1130:EUR"},
        },
        "currency contains a colon",
    ),
    (
        {
            "pspReference": "QFQTPCQ8HXSKGK82:",
            "originalReference": "ExampleShopECOM",
            "merchantAccountCode": "order",
            "merchantReference": "42:EUR",
        },
        "pspReference contains a colon",
    ),
    (
        {
            "originalReference": ":ExampleShopECOM",
            "merchantAccountCode": "order",
            "merchantReference": "42:EUR",
        },
        "originalReference contains a colon",
    ),
    (
        {"merchantAccountCode": "ExampleShopECOM:order", "merchantReference": "42:EUR"},
        "merchantAccountCode contains a colon",
    ),
    (
        {
            "merchantReference": "order",
            "amount": {"value": 42, "currency": "EUR"},
            "eventCode": "1130:EUR:AUTHORISATION",
        },
        "eventCode contains a colon",
    ),
]


def test_an_item_of_adyen_has_one_spelling(subtests: pytest.Subtests) -> None:
    for changes, fault in ADYEN_CHANGES:
        with subtests.test(changes=changes):
            assert adyen_rejection(ITEM | changes) == f"an item is not Adyen's: {fault}"


# Amazon SNS.

MESSAGE = {
    "Type": "Notification",
    "MessageId": "m1",
    "TopicArn": TOPIC,
    "Message": "hello\r\nMessageId\nm2",
    "Timestamp": "2026-03-14T09:26:53.120Z",
}


def signed_message() -> dict[str, Any]:
    body = json.dumps(MESSAGE).encode()
    signed = onceward.sign("aws-sns", secret=f"{TOPIC}:{rsa_pair().private}", body=body, now=NOW)
    document: dict[str, Any] = json.loads(signed.body)
    return document


def sns(body: bytes) -> Any:
    source = make_source("sns", preset="aws-sns", secrets=[f"{TOPIC}:{rsa_pair().public}"])
    events = source.verify(Request(Headers([]), body), NOW)
    assert isinstance(events, list)
    (arrival,) = source.arrivals(events, Headers([]))
    return arrival


@pytest.mark.parametrize(
    "others",
    [
        {"Subject": None},
        {"MessageAttributes": {"amount": {"Type": "String", "Value": "1000000"}}},
        {"UnsubscribeURL": "https://evil.example/"},
    ],
)
def test_unsigned_members_of_sns_make_no_second_event(others: dict[str, Any]) -> None:
    genuine = sns(json.dumps(signed_message()).encode())
    changed = sns(json.dumps(signed_message() | others).encode())
    assert changed.event_id == genuine.event_id == "m1"
    assert changed.body_sha256 != genuine.body_sha256  # a conflict, which is not applied


def test_a_repeated_member_of_sns_is_verified_as_it_is_read(subtests: pytest.Subtests) -> None:
    for name in MESSAGE:
        with subtests.test(name=name):
            genuine = json.dumps(signed_message())
            forged = json.dumps({name: "forged"})
            assert sns(f"{forged[:-1]},{genuine[1:]}".encode()).event_id == "m1"
            with pytest.raises(SignatureRejected):
                sns(f"{genuine[:-1]},{forged[1:]}".encode())


def test_a_message_of_sns_has_one_spelling(subtests: pytest.Subtests) -> None:
    for name, value in (
        ("Subject", ""),
        ("Message", "\\ud800"),
        ("MessageId", 7),
        ("TopicArn", None),
        ("Type", ["Notification"]),
    ):
        with subtests.test(name=name):
            body = json.dumps(signed_message() | {name: value}).replace("\\\\ud800", "\\ud800")
            with pytest.raises(SignatureRejected):
                sns(body.encode())
