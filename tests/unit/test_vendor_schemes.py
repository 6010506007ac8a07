"""Senders that sign what no template says: what they document is accepted, and nothing near it."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import onceward
from onceward.errors import ConfigurationError, SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.request import Headers, Request
from onceward.sources.selectors import parse_selectors
from tests.keys import EMAIL, TOPIC, rsa_pair

SECRET = "a-secret-of-the-account"
BODY = b'{"id":"7","event":"ice","callid":"c1","sys":{"id":"s1","version":3}}'
NOW = 1_760_000_000
URL = "https://shop.example/webhooks/source?data.id=ABC&x=1"
TARGET = "/webhooks/source?data.id=ABC&x=1"
CONTENTFUL_TARGET = "/webhooks/source?data.id%253DABC%2526x%253D1"

Sent = dict[str, Any]


def digest(content: str | bytes, name: str = "sha256", key: bytes = SECRET.encode()) -> bytes:
    return hmac.digest(key, content.encode() if isinstance(content, str) else content, name)


def sent(headers: Mapping[str, str], body: bytes = BODY, **more: Any) -> Sent:
    return {"secret": SECRET, "headers": headers, "body": body, "url": URL, "now": NOW, **more}


def hook0() -> Sent:
    content = f"{NOW}.x-event-id x-event-type.e1.order.paid.".encode() + BODY
    return sent(
        {
            "X-Hook0-Signature": f"t={NOW},h=x-event-id x-event-type,v1={digest(content).hex()}",
            "X-Event-Id": "e1",
            "X-Event-Type": "order.paid",
        }
    )


def contentful() -> Sent:
    listed = "x-contentful-timestamp,x-contentful-signed-headers,x-contentful-topic"
    values = {
        "x-contentful-signed-headers": listed,
        "x-contentful-timestamp": str(NOW * 1000),
        "x-contentful-topic": "Entry.publish",
    }
    headers = ";".join(f"{name}:{value}" for name, value in sorted(values.items()))
    content = f"POST\n{CONTENTFUL_TARGET}\n{headers}\n".encode() + BODY
    return sent({**values, "x-contentful-signature": digest(content).hex()})


def sinch() -> Sent:
    at = datetime.fromtimestamp(NOW, UTC).isoformat()
    md5 = base64.b64encode(hashlib.md5(BODY, usedforsecurity=False).digest()).decode()
    content = f"POST\n{md5}\napplication/json\nx-timestamp:{at}\n{TARGET}"
    key = base64.b64encode(b"a key of the application")
    signature = base64.b64encode(digest(content, key=b"a key of the application")).decode()
    headers = {
        "Authorization": f"application the-key-id:{signature}",
        "x-timestamp": at,
        "content-type": "application/json",
    }
    return sent(headers, secret=key)


def mercadopago() -> Sent:
    content = f"id:abc;request-id:r1;ts:{NOW};"
    value = f"ts={NOW},v1={digest(content).hex()}"
    return sent({"x-signature": value, "x-request-id": "r1"})


def mandrill() -> Sent:
    form = b"mandrill_events=%5B%5D&b=2&a=1"
    signature = base64.b64encode(digest(f"{URL}a1b2mandrill_events[]", "sha1")).decode()
    return sent({"X-Mandrill-Signature": signature}, form)


def graph() -> Sent:
    item = f'{{"clientState":"{SECRET}"}}'
    return sent({}, f'{{"value":[{item},{item}]}}'.encode())


def event_grid() -> Sent:
    return sent({}, url=f"https://shop.example/webhooks/grid?code={SECRET}")


def cloudevents() -> Sent:
    token = {"Authorization": f"Bearer {SECRET}"}
    return sent({**token, "ce-id": "1", "ce-source": "/a|b", "ce-type": "t"}, b"")


def postmark() -> Sent:
    basic = base64.b64encode(b"user:password").decode()
    return sent({"Authorization": f"Basic {basic}"}, secret="user:password")


def figma() -> Sent:
    return sent({}, f'{{"passcode":"{SECRET}","event_type":"PING"}}'.encode())


GENUINE: dict[str, Callable[[], Sent]] = {
    "hook0": hook0,
    "contentful": contentful,
    "sinch": sinch,
    "mercadopago": mercadopago,
    "mandrill": mandrill,
    "microsoft-graph": graph,
    "azure-event-grid": event_grid,
    "cloudevents": cloudevents,
    "postmark": postmark,
    "figma": figma,
}
COVERS_BODY = ("hook0", "contentful", "sinch", "mandrill")
COVERS_URL = ("contentful", "sinch", "mercadopago", "mandrill")


def is_accepted(preset: str, given: Sent) -> bool:
    try:
        onceward.verify(preset, **given)
    except SignatureRejected:
        return False
    return True


@pytest.mark.parametrize("preset", GENUINE)
def test_what_the_sender_documents_is_accepted(preset: str) -> None:
    assert is_accepted(preset, GENUINE[preset]())


@pytest.mark.parametrize("preset", GENUINE)
def test_another_secret_is_refused(preset: str) -> None:
    other: str | bytes = "other:another-secret-of-it"
    if preset == "sinch":
        other = base64.b64encode(b"another key of the application")
    given = GENUINE[preset]() | {"secret": other}
    assert not is_accepted(preset, given)


@pytest.mark.parametrize("preset", COVERS_BODY)
def test_another_body_is_refused(preset: str) -> None:
    given = GENUINE[preset]()
    assert not is_accepted(preset, given | {"body": given["body"] + b"&c=3"})


@pytest.mark.parametrize("preset", COVERS_URL)
def test_another_url_is_refused(preset: str) -> None:
    assert not is_accepted(preset, GENUINE[preset]() | {"url": URL.replace("ABC", "ABD")})


@pytest.mark.parametrize("preset", GENUINE)
def test_every_header_that_is_taken_away_or_changed_is_missed(preset: str) -> None:
    given = GENUINE[preset]()
    for name in given["headers"]:
        if name.startswith("ce-"):
            continue  # a token covers nothing
        rest = {key: value for key, value in given["headers"].items() if key != name}
        assert not is_accepted(preset, given | {"headers": rest}), name
        changed = {**rest, name: given["headers"][name][:-1] + "~"}
        assert not is_accepted(preset, given | {"headers": changed}), name


@pytest.mark.parametrize(("preset", "tolerance"), [("hook0", 300), ("contentful", 30)])
def test_a_time_that_is_off_is_refused(preset: str, tolerance: int) -> None:
    assert is_accepted(preset, GENUINE[preset]() | {"now": NOW + tolerance})
    assert not is_accepted(preset, GENUINE[preset]() | {"now": NOW + tolerance + 1})
    assert not is_accepted(preset, GENUINE[preset]() | {"now": NOW - tolerance - 1})


def test_contentful_must_sign_its_timestamp() -> None:
    content = b"POST\n" + CONTENTFUL_TARGET.encode() + b"\nx-contentful-topic:a\n" + BODY
    headers = {
        "x-contentful-signed-headers": "x-contentful-topic",
        "x-contentful-topic": "a",
        "x-contentful-timestamp": str(NOW * 1000),
        "x-contentful-signature": digest(content).hex(),
    }
    assert not is_accepted("contentful", sent(headers))


def test_more_headers_than_anybody_signs_are_refused_at_once() -> None:
    names = " ".join(f"h{number}" for number in range(10_000))
    headers = {"X-Hook0-Signature": f"t={NOW},h={names},v1={'0' * 64}"}
    assert not is_accepted("hook0", sent(headers))


def test_every_notification_needs_the_client_state() -> None:
    one = f'{{"value":[{{"clientState":"{SECRET}"}},{{}}]}}'.encode()
    for body in (one, b'{"value":[]}', b'{"value":{}}', b"[]", b"{"):
        assert not is_accepted("microsoft-graph", sent({}, body))


def test_every_item_of_adyen_needs_its_signature() -> None:
    vectors = json.loads((Path(__file__).parent / "vectors.json").read_text())
    vector = next(it for it in vectors if it["preset"] == "adyen" and it["scheme"] == "items")
    document = json.loads(vector["body"])
    (item,) = document["notificationItems"]
    other = json.loads(json.dumps(item))
    other["NotificationRequestItem"]["merchantReference"] = "another"
    for items, verdict in (([item, item], True), ([item, other], False), ([item, {}], False)):
        body = json.dumps({"notificationItems": items}).encode()
        given = {"secret": vector["secret"], "headers": {}, "body": body, "scheme": "items"}
        assert is_accepted("adyen", given) == verdict


def test_a_port_may_be_signed_or_not() -> None:
    signature = base64.b64encode(digest("https://shop.example:443/hook", "sha1")).decode()
    headers = {"X-Mandrill-Signature": signature}
    assert is_accepted("mandrill", sent(headers, b"", url="https://shop.example/hook"))
    assert is_accepted("mandrill", sent(headers, b"", url="https://shop.example:443/hook"))
    assert not is_accepted("mandrill", sent(headers, b"", url="https://shop.example:444/hook"))


def test_parts_of_an_id_cannot_be_taken_for_one_another() -> None:
    found = onceward.verify("cloudevents", **cloudevents())
    assert (found.id, found.type) == ("/a%7Cb|1", "t")


def test_user_and_password_have_a_colon_between() -> None:
    with pytest.raises(ConfigurationError, match="is not user:password"):
        onceward.verify("postmark", **(postmark() | {"secret": "password"}))


# Senders whose secret has a name in it.


def forged(preset: str, secret: str, private: str, **given: Any) -> str:
    """Why what was signed with one secret is refused under another."""
    verifies = onceward.sign(preset, secret=private, **given)
    with pytest.raises(SignatureRejected) as refused:
        onceward.verify(
            preset, secret=secret, headers=verifies.headers, body=verifies.body, url=verifies.url
        )
    return refused.value.check


def test_braintree_checks_the_signature_under_the_name_of_its_own_key() -> None:
    body = b"bt_payload=PG5vdGU%2B%0A"
    assert "no signature matched" in forged("braintree", "mine:key", "another:key", body=body)
    verifies = onceward.sign("braintree", secret="mine:key", body=body)
    several = verifies.body.replace(b"bt_signature=", b"bt_signature=a%7C" + b"0" * 40 + b"%26")
    onceward.verify("braintree", secret="mine:key", headers={}, body=several)
    with pytest.raises(ConfigurationError, match="is not public_key:private_key"):
        onceward.verify("braintree", secret="only-one-part", headers={}, body=body)


def test_paypal_checks_that_it_is_for_this_webhook() -> None:
    pair = rsa_pair()
    public, private = f"WH-MINE:{pair.public}", f"WH-OTHER:{pair.private}"
    assert "no signature matched" in forged("paypal", public, private, body=b'{"id":"WH-1"}')
    with pytest.raises(ConfigurationError, match="is not WEBHOOK_ID:certificate"):
        onceward.verify("paypal", secret=pair.public, headers={}, body=b"")


def test_a_token_of_google_is_for_this_url() -> None:
    pair = rsa_pair()
    private, public = f"{EMAIL}:{pair.private}", f"{EMAIL}:{pair.public}"
    verifies = onceward.sign("google-pubsub", scheme="oidc", secret=private, body=b"{}", url=URL)
    given: Sent = {"secret": public, "headers": verifies.headers, "body": b"{}", "scheme": "oidc"}
    onceward.verify("google-pubsub", url=URL, **given)
    other = f"somebody@else.example:{pair.public}"
    with pytest.raises(SignatureRejected) as refused:
        onceward.verify("google-pubsub", url=URL, **given | {"secret": other})
    assert refused.value.check == "the token has the wrong email"
    with pytest.raises(ConfigurationError, match="url is required"):
        make_source("it", preset="google-pubsub", scheme="oidc", secrets=[public])
    with pytest.raises(SignatureRejected) as refused:
        onceward.verify("google-pubsub", url="https://another.example/", **given)
    assert refused.value.check == "the token is for another audience"


def test_a_form_in_parts_is_read_without_its_files() -> None:
    event = {"event_type": "signature_request_sent", "event_time": "1760000000"}
    event["event_hash"] = digest("1760000000signature_request_sent").hex()
    fields = {"json": json.dumps({"event": event, "signature_request": {}}), "other": "x"}
    file = 'name="json"; filename="a.txt"\r\n\r\n{}\r\n'
    parts = [f'name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    body = "".join([f"--b0\r\nContent-Disposition: form-data; {it}" for it in [*parts, file]])
    for kind in ("multipart/form-data; boundary=b0", 'Multipart/Form-Data; boundary="b0"'):
        found = onceward.verify(
            "dropbox-sign",
            secret=SECRET,
            headers={"content-type": kind},
            body=f"{body}--b0--\r\n".encode(),
        )
        assert found.type == "signature_request_sent"


def test_a_message_of_another_topic_is_not_ours() -> None:
    pair = rsa_pair()
    message = dict.fromkeys(("Message", "MessageId", "Timestamp"), "x")
    body = json.dumps({**message, "Type": "Notification", "TopicArn": TOPIC}).encode()
    verifies = onceward.sign("aws-sns", secret=f"{TOPIC}:{pair.private}", body=body)
    onceward.verify("aws-sns", secret=f"{TOPIC}:{pair.public}", headers={}, body=verifies.body)
    with pytest.raises(SignatureRejected) as refused:
        onceward.verify("aws-sns", secret=f"{TOPIC}2:{pair.public}", headers={}, body=verifies.body)
    assert refused.value.check == "it is of a topic that is not the source's"
    for secret in (pair.public, f"orders:{pair.public}", f"{TOPIC}:"):
        with pytest.raises(ConfigurationError, match="is not TOPIC_ARN:certificate"):
            onceward.verify("aws-sns", secret=secret, headers={}, body=verifies.body)


def test_a_field_of_braintree_that_occurs_twice_is_refused_and_the_rest_is_not_kept() -> None:
    verifies = onceward.sign("braintree", secret="mine:key", body=b"bt_payload=PG5vdGU%2B%0A")
    source = make_source("it", preset="braintree", secrets=["mine:key"])
    ids = set()
    for body in (verifies.body, verifies.body + b"&x=1", verifies.body.replace(b"%0A", b"")):
        admitted = source.verify(Request(Headers([]), body), NOW)
        assert isinstance(admitted, list)
        ((identity, kept),) = admitted
        assert kept == b"PG5vdGU+"
        ids.add(identity.event_id)
    assert len(ids) == 1
    with pytest.raises(SignatureRejected):
        source.verify(Request(Headers([]), b"bt_payload=Zm9yZ2Vk&" + verifies.body), NOW)


def test_what_anyone_can_have_x_s_secret_sign_is_no_event() -> None:
    source = make_source("it", preset="x-twitter", secrets=[SECRET])
    asked = Request(Headers([]), b"", method="GET", url=f"{URL}&crc_token=12345")
    reply = source.answer_challenge(asked)
    assert reply is not None
    signature = json.loads(reply.body)["response_token"].encode()
    headers = Headers([(b"x-twitter-webhooks-signature", signature)])
    with pytest.raises(SignatureRejected) as refused:
        source.verify(Request(headers, b"12345"), NOW)
    assert refused.value.check == "the body is a token to be signed, not an event"


def test_a_token_is_one_event_however_its_signature_is_written() -> None:
    (place,) = parse_selectors("hash:Plaid-Verification")
    tokens = [b"head.claims.c2ln", b"head.claims.c2ln==", b"head.claims.b3RoZXI"]
    found = {place.read(Request(Headers([(b"plaid-verification", it)]), b"")) for it in tokens}
    assert len(found) == 1
    other = Request(Headers([(b"plaid-verification", b"head.others.c2ln")]), b"")
    assert place.read(other) not in found


def test_box_spells_only_small_bodies_anew() -> None:
    body = '{"name":"Zoë","path":"a\\\\b"}'.encode()
    spelt = body.decode().replace("ë", "\\u00eb").replace("\\\\", "\\\\\\\\").encode()
    for padding, is_genuine in ((b"", True), (b" " * 65_536, False)):
        at = datetime.fromtimestamp(NOW, UTC).isoformat()
        signature = base64.b64encode(digest(spelt + padding + at.encode())).decode()
        headers = {"Box-Signature-Primary": signature, "Box-Delivery-Timestamp": at}
        given = sent(headers, body + padding)
        assert is_accepted("box", given) is is_genuine


def test_a_body_too_large_to_be_read_unproved_is_refused() -> None:
    for preset, body in (("twilio", b"a=1&" * 300_000), ("mailgun", b'{"a":[' + b"[]," * 400_000)):
        with pytest.raises(SignatureRejected):
            onceward.verify(
                preset, secret=SECRET, headers={"X-Twilio-Signature": "AAAA"}, body=body, url=URL
            )
