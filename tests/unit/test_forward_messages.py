"""The messages of forwards: Standard Webhooks, and the payload as it was received."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any

import pytest

import onceward
from onceward import Event
from onceward.work.forwarding.message import envelope, message_id, signed_headers
from tests.receiver import OTHER_SECRET, SECRET

NOW = 1_800_000_000.9
DEEP = b"[" * 5_000 + b"]" * 5_000


def event(body: bytes = b"{}", **fields: Any) -> Event[Any]:
    given = {
        "id": "evt_1",
        "source": "stripe",
        "type": "invoice.paid",
        "reference": "in_1",
        "received_at": datetime(2027, 1, 2, 3, 4, 5, 6, UTC),
        "body": body,
        "headers": {"content-type": "application/json"},
        "_decode": lambda: None,
    }
    return Event(**given | fields)


def test_an_event_is_sent_with_its_identity_and_payload() -> None:
    assert json.loads(envelope(event(b'{"amount": 5}'))) == {
        "type": "invoice.paid",
        "timestamp": "2027-01-02T03:04:05.000006Z",
        "data": {
            "key": "stripe:evt_1",
            "source": "stripe",
            "id": "evt_1",
            "reference": "in_1",
            "payload": {"amount": 5},
        },
    }


PAYLOADS = [
    b'{"amount": 1.10, "big": 12345678901234567890123, "e": 1e300, "same": 1, "same": 2}',
    b'{"text": "\\u00e9 \xc3\xa9",\n "list": [1,  2]}',
    b"9" * 500,
    b'"text"',
    b"null",
]


def test_the_payload_is_sent_as_it_was_received(subtests: pytest.Subtests) -> None:
    for payload in PAYLOADS:
        with subtests.test(payload=payload):
            assert envelope(event(payload)).endswith(b'"payload":' + payload + b"}}")


def test_the_payload_of_an_own_event_is_the_member() -> None:
    body = b'{"event_id": "1", "event_type": "a", "payload": {"amount": 1.10}, "reference": "r"}'
    assert envelope(event(body, source="ingest")).endswith(b'"payload":{"amount": 1.10}}}')


BODIES = [
    (b"a=1&b=2", "application/x-www-form-urlencoded"),
    (b"123", "application/x-www-form-urlencoded"),
    (b"<a/>", "text/xml"),
    (b"", ""),
    (b'{"cut": ', "application/json"),
    (b'{"not": "UTF-8 \xff"}', "application/json"),
    (b'{"not": 1e400}', "application/json"),
    (b"9" * 501, "application/json"),
    (b'{"half": "\\ud800"}', "application/json"),
    (b"\xef\xbb\xbf{}", "application/json"),
    (b'{"a": NaN}', "application/json"),
    (DEEP, "application/json"),
    (bytes(range(256)), "application/octet-stream"),
]


def test_a_body_that_is_not_json_is_sent_in_base64(subtests: pytest.Subtests) -> None:
    for body, content_type in BODIES:
        with subtests.test(body=body, content_type=content_type):
            headers = {"content-type": content_type} if content_type else {}
            data = json.loads(envelope(event(body, headers=headers)))["data"]
            assert base64.b64decode(data.pop("body_base64")) == body
            assert data.pop("content_type") == content_type
            assert data.keys() == {"key", "source", "id", "reference"}


def test_an_id_is_stable_and_of_one_event_and_forward() -> None:
    found = message_id("billing", event())
    assert found == message_id("billing", event(b"another attempt", type="b"))
    others = [
        message_id("shipping", event()),
        message_id("billing", event(id="evt_2")),
        message_id("billing", event(source="github")),
        message_id("billing", event(source="stripe:evt", id="_1")),
    ]
    assert len({found, *others}) == 5
    assert found == "fwd_b1acd87eaa840631740dbd05"
    assert message_id("a.b", event(id="1.2")).count(".") == 0


def test_every_secret_signs() -> None:
    body = envelope(event())
    headers = signed_headers([SECRET, OTHER_SECRET], "fwd_1", body, NOW)
    assert headers["webhook-id"] == "fwd_1"
    assert headers["webhook-timestamp"] == "1800000000"
    content = b"fwd_1.1800000000." + body
    expected = [
        base64.b64encode(hmac.digest(base64.b64decode(secret[6:]), content, hashlib.sha256))
        for secret in (SECRET, OTHER_SECRET)
    ]
    assert headers["webhook-signature"] == " ".join(f"v1,{each.decode()}" for each in expected)
    for secret in (SECRET, OTHER_SECRET):
        verified = onceward.verify(
            "standard-webhooks", secret=secret, headers=headers, body=body, now=NOW
        )
        assert (verified.id, verified.type, verified.reference) == (
            "fwd_1",
            "invoice.paid",
            "evt_1",
        )
