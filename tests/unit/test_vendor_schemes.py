"""Vendor schemes accept the requests that providers document, and nothing else."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
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

SignedRequest = dict[str, Any]
"""Keyword arguments of `onceward.verify`."""


def digest(content: str | bytes, name: str = "sha256", key: bytes = SECRET.encode()) -> bytes:
    return hmac.digest(key, content.encode() if isinstance(content, str) else content, name)


def signed_request(headers: Mapping[str, str], body: bytes = BODY, **more: Any) -> SignedRequest:
    return {"secret": SECRET, "headers": headers, "body": body, "url": URL, "now": NOW, **more}


def hook0() -> SignedRequest:
    content = f"{NOW}.x-event-id x-event-type.e1.shop.order.paid.".encode() + BODY
    return signed_request(
        {
            "X-Hook0-Signature": f"t={NOW},h=x-event-id x-event-type,v1={digest(content).hex()}",
            "X-Event-Id": "e1",
            "X-Event-Type": "shop.order.paid",
        }
    )


def contentful() -> SignedRequest:
    listed = "x-contentful-timestamp,x-contentful-signed-headers,x-contentful-topic"
    values = {
        "x-contentful-signed-headers": listed,
        "x-contentful-timestamp": str(NOW * 1000),
        "x-contentful-topic": "Entry.publish",
    }
    headers = ";".join(f"{name}:{value}" for name, value in sorted(values.items()))
    content = f"POST\n{CONTENTFUL_TARGET}\n{headers}\n".encode() + BODY
    return signed_request({**values, "x-contentful-signature": digest(content).hex()})


def sinch() -> SignedRequest:
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
    return signed_request(headers, secret=key)


def mercadopago() -> SignedRequest:
    content = f"id:abc;request-id:r1;ts:{NOW};"
    value = f"ts={NOW},v1={digest(content).hex()}"
    return signed_request({"x-signature": value, "x-request-id": "r1"})


def mandrill() -> SignedRequest:
    form = b"mandrill_events=%5B%5D"
    signature = base64.b64encode(digest(f"{URL}mandrill_events[]", "sha1")).decode()
    return signed_request({"X-Mandrill-Signature": signature}, form)


def graph() -> SignedRequest:
    item = f'{{"clientState":"{SECRET}"}}'
    return signed_request({}, f'{{"value":[{item},{item}]}}'.encode())


def event_grid() -> SignedRequest:
    return signed_request({}, url=f"https://shop.example/webhooks/grid?code={SECRET}")


def cloudevents() -> SignedRequest:
    token = {"Authorization": f"Bearer {SECRET}"}
    return signed_request({**token, "ce-id": "1", "ce-source": "/a|b", "ce-type": "t"}, b"")


def postmark() -> SignedRequest:
    basic = base64.b64encode(b"user:password").decode()
    return signed_request({"Authorization": f"Basic {basic}"}, secret="user:password")


def figma() -> SignedRequest:
    return signed_request({}, f'{{"passcode":"{SECRET}","event_type":"PING"}}'.encode())


GENUINE: dict[str, Callable[[], SignedRequest]] = {
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


def is_accepted(preset: str, request: SignedRequest) -> bool:
    try:
        onceward.verify(preset, **request)
    except SignatureRejected:
        return False
    return True


def test_a_documented_request_is_accepted(subtests: pytest.Subtests) -> None:
    for preset, make_request in GENUINE.items():
        with subtests.test(preset):
            assert is_accepted(preset, make_request())


def test_another_secret_is_rejected(subtests: pytest.Subtests) -> None:
    for preset, make_request in GENUINE.items():
        with subtests.test(preset):
            other: str | bytes = "other:another-secret-of-it"
            if preset == "sinch":
                other = base64.b64encode(b"another key of the application")
            request = make_request() | {"secret": other}
            assert not is_accepted(preset, request)


def test_another_body_is_rejected(subtests: pytest.Subtests) -> None:
    for preset in COVERS_BODY:
        with subtests.test(preset):
            request = GENUINE[preset]()
            assert not is_accepted(preset, request | {"body": request["body"] + b"&c=3"})


def test_another_url_is_rejected(subtests: pytest.Subtests) -> None:
    for preset in COVERS_URL:
        with subtests.test(preset):
            assert not is_accepted(preset, GENUINE[preset]() | {"url": URL.replace("ABC", "ABD")})


def test_a_missing_or_changed_header_is_rejected(subtests: pytest.Subtests) -> None:
    for preset, make_request in GENUINE.items():
        with subtests.test(preset):
            request = make_request()
            for name in request["headers"]:
                if name.startswith("ce-"):
                    continue  # a token covers nothing
                rest = {key: value for key, value in request["headers"].items() if key != name}
                assert not is_accepted(preset, request | {"headers": rest}), name
                changed = {**rest, name: request["headers"][name][:-1] + "~"}
                assert not is_accepted(preset, request | {"headers": changed}), name


@pytest.mark.parametrize(("preset", "tolerance"), [("hook0", 300), ("contentful", 30)])
def test_a_time_outside_the_tolerance_is_rejected(preset: str, tolerance: int) -> None:
    assert is_accepted(preset, GENUINE[preset]() | {"now": NOW + tolerance})
    assert not is_accepted(preset, GENUINE[preset]() | {"now": NOW + tolerance + 1})
    assert not is_accepted(preset, GENUINE[preset]() | {"now": NOW - tolerance - 1})


def test_every_notification_of_graph_needs_the_client_state() -> None:
    incomplete = f'{{"value":[{{"clientState":"{SECRET}"}},{{}}]}}'.encode()
    for body in (incomplete, b'{"value":[]}', b'{"value":{}}', b"[]", b"{"):
        assert not is_accepted("microsoft-graph", signed_request({}, body))


def test_every_item_of_adyen_needs_its_signature() -> None:
    vectors = json.loads((Path(__file__).parent / "vectors.json").read_text())
    vector = next(
        vector for vector in vectors if (vector["preset"], vector["scheme"]) == ("adyen", "items")
    )
    document = json.loads(vector["body"])
    (item,) = document["notificationItems"]
    other = json.loads(json.dumps(item))
    other["NotificationRequestItem"]["merchantReference"] = "another"
    for items, is_genuine in (([item, item], True), ([item, other], False), ([item, {}], False)):
        body = json.dumps({"notificationItems": items}).encode()
        request = {"secret": vector["secret"], "headers": {}, "body": body, "scheme": "items"}
        assert is_accepted("adyen", request) is is_genuine


def test_a_url_is_accepted_with_or_without_its_default_port() -> None:
    content = "https://shop.example:443/hookmandrill_events[]"
    headers = {"X-Mandrill-Signature": base64.b64encode(digest(content, "sha1")).decode()}
    for port, is_genuine in (("", True), (":443", True), (":444", False)):
        url = f"https://shop.example{port}/hook"
        request = signed_request(headers, b"mandrill_events=[]", url=url)
        assert is_accepted("mandrill", request) is is_genuine


def test_a_separator_in_a_part_of_an_id_is_escaped() -> None:
    verified = onceward.verify("cloudevents", **cloudevents())
    assert (verified.id, verified.type) == ("/a%7Cb|1", "t")


def test_a_basic_secret_must_be_user_and_password() -> None:
    with pytest.raises(ConfigurationError, match="is not user:password"):
        onceward.verify("postmark", **(postmark() | {"secret": "password"}))


# Providers whose secret contains a name.


def rejection_of(preset: str, secret: str, private: str, **request: Any) -> str:
    """Return why a request signed with `private` is rejected by `secret`."""
    signed = onceward.sign(preset, secret=private, **request)
    with pytest.raises(SignatureRejected) as rejection:
        onceward.verify(
            preset, secret=secret, headers=signed.headers, body=signed.body, url=signed.url
        )
    return rejection.value.check


def test_braintree_checks_only_the_signature_of_its_own_key() -> None:
    body = b"bt_payload=PG5vdGU%2B%0A"
    assert "no signature matched" in rejection_of(
        "braintree", "mine:private-key", "another:private-key", body=body
    )
    signed = onceward.sign("braintree", secret="mine:private-key", body=body)
    for others, is_tried in ((1, True), (9, True), (10, False)):
        before = (b"mine%7C" + b"0" * 40 + b"%26") * others
        several = signed.body.replace(b"bt_signature=", b"bt_signature=" + before)
        with nullcontext() if is_tried else pytest.raises(SignatureRejected):
            onceward.verify("braintree", secret="mine:private-key", headers={}, body=several)
    with pytest.raises(ConfigurationError, match="is not public_key:private_key"):
        onceward.verify("braintree", secret="only-one-part", headers={}, body=body)


def test_paypal_rejects_a_request_for_another_webhook() -> None:
    pair = rsa_pair()
    public, private = f"WH-MINE:{pair.public}", f"WH-OTHER:{pair.private}"
    assert "no signature matched" in rejection_of("paypal", public, private, body=b'{"id":"WH-1"}')
    with pytest.raises(ConfigurationError, match="is not WEBHOOK_ID:certificate"):
        onceward.verify("paypal", secret=pair.public, headers={}, body=b"")


def test_google_rejects_a_token_for_another_account_or_url() -> None:
    pair = rsa_pair()
    private, public = f"{EMAIL}:{pair.private}", f"{EMAIL}:{pair.public}"
    signed = onceward.sign("google-pubsub", scheme="oidc", secret=private, body=b"{}", url=URL)
    request: SignedRequest = {
        "secret": public,
        "headers": signed.headers,
        "body": b"{}",
        "scheme": "oidc",
    }
    onceward.verify("google-pubsub", url=URL, **request)
    other = f"other@project.iam.example:{pair.public}"
    with pytest.raises(SignatureRejected) as rejection:
        onceward.verify("google-pubsub", url=URL, **request | {"secret": other})
    assert rejection.value.check == "the token has the wrong email"
    with pytest.raises(ConfigurationError, match="url is required"):
        make_source("source", preset="google-pubsub", scheme="oidc", secrets=[public])
    with pytest.raises(SignatureRejected) as rejection:
        onceward.verify("google-pubsub", url="https://another.example/", **request)
    assert rejection.value.check == "the token is for another audience"


def test_a_multipart_form_is_read_without_its_files() -> None:
    event = {"event_type": "signature_request_sent", "event_time": "1760000000"}
    event["event_hash"] = digest("1760000000signature_request_sent").hex()
    fields = {"json": json.dumps({"event": event, "signature_request": {}}), "other": "x"}
    file = 'name="json"; filename="a.txt"\r\n\r\n{}\r\n'
    parts = [f'name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    body = "".join([f"--b0\r\nContent-Disposition: form-data; {part}" for part in [*parts, file]])
    for kind in ("multipart/form-data; boundary=b0", 'Multipart/Form-Data; boundary="b0"'):
        verified = onceward.verify(
            "dropbox-sign",
            secret=SECRET,
            headers={"content-type": kind},
            body=f"{body}--b0--\r\n".encode(),
            now=NOW,
        )
        assert verified.type == "signature_request_sent"


def test_sns_rejects_a_message_for_another_topic() -> None:
    pair = rsa_pair()
    message = dict.fromkeys(("Message", "MessageId", "Timestamp"), "x")
    body = json.dumps({**message, "Type": "Notification", "TopicArn": TOPIC}).encode()
    signed = onceward.sign("aws-sns", secret=f"{TOPIC}:{pair.private}", body=body)
    onceward.verify("aws-sns", secret=f"{TOPIC}:{pair.public}", headers={}, body=signed.body)
    with pytest.raises(SignatureRejected) as rejection:
        onceward.verify("aws-sns", secret=f"{TOPIC}2:{pair.public}", headers={}, body=signed.body)
    assert rejection.value.check == "the message is for another topic"
    for secret in (pair.public, f"orders:{pair.public}", f"{TOPIC}:"):
        with pytest.raises(ConfigurationError, match="is not TOPIC_ARN:certificate"):
            onceward.verify("aws-sns", secret=secret, headers={}, body=signed.body)


def test_sns_rejects_a_message_of_another_topic_cut_differently() -> None:
    pair = rsa_pair()
    forged = {
        "Message": "a",
        "MessageId": "b",
        "SubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription",
        "Timestamp": "c",
        "Token": "d",
        "TopicArn": TOPIC,
    }
    fields = "".join(f"\n{name}\n{value}" for name, value in forged.items())
    own = {
        "MessageId": "e",
        "Timestamp": "2025-10-09T08:53:20Z",
        "TopicArn": f"{TOPIC}-own",
        "Type": "Notification",
    }
    message = fields.removeprefix("\nMessage\n") + "\nType\nConfirmation"
    body = json.dumps({"Message": message, **own}).encode()
    genuine = onceward.sign("aws-sns", secret=f"{TOPIC}-own:{pair.private}", body=body, now=NOW)
    assert json.loads(genuine.body)["Timestamp"] == own["Timestamp"]
    rest = "".join(f"\n{name}\n{value}" for name, value in own.items())
    proof = {name: json.loads(genuine.body)[name] for name in ("Signature", "SignatureVersion")}
    recut = json.dumps({**forged, "Type": f"Confirmation{rest}", **proof}).encode()
    secret = f"{TOPIC}:{pair.public}"
    with pytest.raises(SignatureRejected) as rejection:
        onceward.verify("aws-sns", secret=secret, headers={}, body=recut)
    assert rejection.value.check == "json:Type is none of Amazon's three"


@pytest.mark.parametrize("name", ["MessageId", "Subject", "TopicArn"])
def test_sns_rejects_a_line_break_in_every_field_but_the_message(name: str) -> None:
    secret = f"{TOPIC}:{rsa_pair().private}"
    texts = dict.fromkeys(("Message", "MessageId", "Timestamp", "Subject"), "x")
    message = {**texts, "Type": "Notification", "TopicArn": TOPIC}
    lines = json.dumps(message | {"Message": "two\nlines"}).encode()
    onceward.sign("aws-sns", secret=secret, body=lines)
    broken = json.dumps(message | {name: "two\nlines"}).encode()
    with pytest.raises(ConfigurationError, match=f"json:{name} has a line break"):
        onceward.sign("aws-sns", secret=secret, body=broken)


def test_braintree_rejects_a_repeated_field_and_keeps_only_the_payload() -> None:
    signed = onceward.sign("braintree", secret="mine:private-key", body=b"bt_payload=PG5vdGU%2B%0A")
    source = make_source("source", preset="braintree", secrets=["mine:private-key"])
    ids = set()
    for body in (signed.body, signed.body + b"&x=1", signed.body.replace(b"%0A", b"")):
        events = source.verify(Request(Headers([]), body), NOW)
        assert isinstance(events, list)
        ((identity, payload, *_),) = events
        assert payload == b"PG5vdGU+"
        ids.add(identity.event_id)
    assert len(ids) == 1
    with pytest.raises(SignatureRejected):
        source.verify(Request(Headers([]), b"bt_payload=Zm9yZ2Vk&" + signed.body), NOW)


def test_the_signature_of_a_token_does_not_change_its_hash() -> None:
    (selector,) = parse_selectors("hash:Plaid-Verification")
    tokens = [b"head.claims.c2ln", b"head.claims.c2ln==", b"head.claims.b3RoZXI"]
    hashes = {
        selector.read(Request(Headers([(b"plaid-verification", token)]), b"")) for token in tokens
    }
    assert len(hashes) == 1
    other = Request(Headers([(b"plaid-verification", b"head.others.c2ln")]), b"")
    assert selector.read(other) not in hashes


def test_box_escapes_only_small_bodies() -> None:
    body = '{"name":"Zoë","path":"a\\\\b"}'.encode()
    escaped = body.decode().replace("ë", "\\u00eb").replace("\\\\", "\\\\\\\\").encode()
    largest = 65_536 - len(body)
    for blanks, is_genuine in ((0, True), (largest, True), (largest + 1, False)):
        padding = b" " * blanks
        at = datetime.fromtimestamp(NOW, UTC).isoformat()
        signature = base64.b64encode(digest(escaped + padding + at.encode())).decode()
        headers = {"Box-Signature-Primary": signature, "Box-Delivery-Timestamp": at}
        request = signed_request(headers, body + padding)
        assert is_accepted("box", request) is is_genuine


def test_a_body_too_large_to_parse_before_verification_is_rejected() -> None:
    for preset, body in (("twilio", b"a=1&" * 300_000), ("mailgun", b'{"a":[' + b"[]," * 400_000)):
        with pytest.raises(SignatureRejected):
            onceward.verify(
                preset, secret=SECRET, headers={"X-Twilio-Signature": "AAAA"}, body=body, url=URL
            )
