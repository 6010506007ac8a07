"""Senders that sign the URL and form fields: a signed text is one event, however it is written."""

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

import onceward
from onceward.errors import ConfigurationError, RequestRefused, SignatureRejected
from onceward.sources.configure import make_source
from onceward.sources.event_reader import IdentifiedEvent
from onceward.sources.request import Headers, Request
from onceward.sources.source import Source
from tests.keys import rsa_pair

SECRET = "a-secret-of-the-account"
NOW = 1_760_000_000
URL = "https://shop.example/webhooks/twilio?account=1"
MESSAGE = {"AccountSid": "AC1", "Body": "hello", "From": "+41", "MessageStatus": "received"}
NOT_PLAIN = "the body is not a URL-encoded form in ASCII with valid escapes"
MULTIPART = b"multipart/form-data; boundary=b0"


def signature(content: str) -> bytes:
    return base64.b64encode(hmac.digest(SECRET.encode(), content.encode(), hashlib.sha1))


def signed_text(fields: dict[str, str], url: str = URL) -> str:
    return url + "".join(name + fields[name] for name in sorted(fields))


def twilio(**options: Any) -> Source:
    return make_source("twilio", **{"secrets": [SECRET], "url": URL, **options})


def send(
    source: Source,
    body: bytes,
    proof: bytes,
    *,
    query: str = "account=1",
    content_type: bytes = b"application/x-www-form-urlencoded",
) -> IdentifiedEvent:
    name = source.scheme.at.removeprefix("header:").lower().encode()
    headers = Headers([(name, proof), (b"content-type", content_type)])
    request = Request(headers, body, url=source.public_url(query))
    events = source.verify(request, NOW)
    assert isinstance(events, list)
    (event,) = events
    return event


def rejection(source: Source, body: bytes, proof: bytes, **options: Any) -> str:
    with pytest.raises(SignatureRejected) as caught:
        send(source, body, proof, **options)
    return caught.value.check


def multipart(fields: dict[str, str]) -> bytes:
    parts = [
        f'--b0\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    return "".join([*parts, "--b0--\r\n"]).encode()


JSON_BODY = b'{"type":"forged"}'
HASH = hashlib.sha256(JSON_BODY).hexdigest()
FORM = urlencode(MESSAGE).encode()
SPELLINGS = [
    FORM.replace(b"hello", b"%68ello"),
    FORM.replace(b"%2B", b"%2b"),
    b"&" + FORM + b"&&",
    FORM + b"&From=%2B41",
    urlencode(dict(reversed(MESSAGE.items()))).encode(),
    FORM.replace(b"Body=hello", b"Bod=yhello"),
    urlencode({"AccountSid": signed_text(MESSAGE, "").removeprefix("AccountSid")}).encode(),
]


def test_every_spelling_of_a_form_is_the_same_event(subtests: pytest.Subtests) -> None:
    for body in SPELLINGS:
        with subtests.test(body=body):
            source, proof = twilio(), signature(signed_text(MESSAGE))
            genuine = send(source, FORM, proof)
            other = send(source, body, proof)
            assert other.identity.event_id == genuine.identity.event_id
            assert source.digest(other.content) == source.digest(genuine.content)


def test_the_type_of_the_body_is_not_asked_of_an_unsigned_header() -> None:
    source, proof = twilio(), signature(signed_text(MESSAGE))
    event = send(source, FORM, proof, content_type=MULTIPART)
    assert event == send(source, FORM, proof)
    assert event.identity.type == "received"


@pytest.mark.parametrize(
    "body",
    [b"a=1&" * 1001, b"a=" + b"1" * 1024 * 1024, multipart({f"n{n}": "" for n in range(1001)})],
    ids=["fields", "bytes", "parts"],
)
def test_a_form_over_the_limits_is_not_an_empty_form(body: bytes) -> None:
    check = rejection(twilio(), body, signature(URL))
    assert check == (
        "the form has more than 1000 fields or 1048576 bytes, "
        "or many escapes and an invalid or non-ASCII one"
    )


def test_a_multipart_form_may_have_as_many_fields_as_another() -> None:
    for count, exceeds in ((1000, False), (1001, True)):
        body = multipart({f"n{number}": "" for number in range(count)})
        assert Request(Headers([]), body).exceeds_form_limits is exceeds


def test_blanks_are_a_part_of_a_multipart_value() -> None:
    fields = {"Body": " hello \r\n", "From": "\t"}
    for before in (b"", b"\r\n"):
        assert dict(Request(Headers([]), before + multipart(fields)).form) == fields


def test_another_body_is_rejected_for_a_url_only_proof() -> None:
    assert NOT_PLAIN in rejection(twilio(), b'{"a":1}', signature(URL))
    assert "no signature matched" in rejection(twilio(), b"a=1", signature(URL))
    check = rejection(twilio(), FORM, signature(URL), content_type=MULTIPART)
    assert "no signature matched" in check


def test_a_content_type_does_not_give_a_command_of_slack_another_id() -> None:
    source = make_source("slack", secrets=[SECRET])
    body = urlencode({"command": "/pay", "trigger_id": "13345224609.738474920"}).encode()
    signed = onceward.sign("slack", secret=SECRET, body=body, now=NOW)
    ids = set()
    for content_type in (b"application/x-www-form-urlencoded", MULTIPART):
        pairs = [(name.lower().encode(), text.encode()) for name, text in signed.headers.items()]
        headers = Headers([*pairs, (b"content-type", content_type)])
        events = source.verify(Request(headers, body), NOW)
        assert isinstance(events, list)
        ids.add(events[0].identity)
    ((event_id, event_type, _),) = ids
    assert (event_id, event_type) == ("13345224609.738474920", "/pay")


# A body that somebody else reads as other fields, or not as a form.


def test_fields_behind_a_multipart_form_are_not_taken_for_signed_ones() -> None:
    body = multipart(MESSAGE) + b"&Body=forged&From=%2B99"
    assert dict(parse_qsl(body.decode()))["Body"] == "forged"
    assert NOT_PLAIN in rejection(twilio(), body, signature(signed_text(MESSAGE)))
    assert NOT_PLAIN in rejection(twilio(), multipart(MESSAGE), signature(signed_text(MESSAGE)))


def test_the_text_of_a_message_is_not_taken_for_a_json_body() -> None:
    message = MESSAGE | {"Body": '"}{"type":"payment","rest":"'}
    signed = signed_text(message, "")
    cut = signed.index('{"')
    body = f"{signed[cut:]}&{signed[:cut]}".replace("+", "%2B").encode()
    assert json.loads(body)["type"] == "payment"
    assert NOT_PLAIN in rejection(twilio(), body, signature(URL + signed))


def test_a_form_that_parsers_read_differently_is_rejected(subtests: pytest.Subtests) -> None:
    for case, signed, sent in [
        ("two encodings", "Ã©", b"\xc3\xa9"),
        ("an invalid escape", "%zz", b"%zz"),
        ("another separator", "a;From=1", b"a;From=1"),
        ("a line break", "a\r\nb", b"a\r\nb"),
    ]:
        with subtests.test(case):
            message = MESSAGE | {"Body": signed}
            proof = signature(signed_text(message))
            assert send(twilio(), urlencode(message).encode(), proof)
            assert NOT_PLAIN in rejection(twilio(), FORM.replace(b"hello", sent), proof)


@pytest.mark.parametrize("url", [URL, "https://shop.example/hook"])
def test_a_json_capture_is_not_taken_for_a_form(url: str) -> None:
    source = twilio(url=url)
    query = url.partition("?")[2]
    added = f"{'&' if query else '?'}bodySHA256={HASH}"
    proof = signature(url + added)
    assert send(source, JSON_BODY, proof, query=f"{query}{added}".removeprefix("?"))
    for fields in ({added: ""}, {"": added}, {added[:9]: added[9:]}):
        check = rejection(source, urlencode(fields).encode(), proof, query=query)
        assert check == "the form continues the signed URL"


def test_a_signed_port_is_not_taken_for_a_field() -> None:
    source = twilio(url="https://shop.example")
    proof = signature(signed_text(MESSAGE, "https://shop.example:443"))
    assert send(source, FORM, proof)
    recut = FORM.replace(b"AccountSid", b"%3A443AccountSid")
    assert rejection(source, recut, proof) == "the form continues the signed URL"


# The hash of a JSON body in the URL.


def test_different_json_bodies_are_different_events() -> None:
    ids = set()
    for body in (b'{"type":"a=b"}', b'{"type":"ab"}'):  # alike as joined form fields
        query = f"bodySHA256={hashlib.sha256(body).hexdigest()}"
        event = send(twilio(), body, signature(f"{URL}&{query}"), query=f"account=1&{query}")
        assert event.content == body
        ids.add(event.identity.event_id)
    assert len(ids) == 2


def test_a_json_body_is_covered_by_its_hash_in_the_url() -> None:
    query = f"account=1&bodySHA256={HASH}"
    proof = signature(f"{URL}&bodySHA256={HASH}")
    assert send(twilio(), JSON_BODY, proof, query=query).body == JSON_BODY
    check = rejection(twilio(), JSON_BODY + b" ", proof, query=query)
    assert check == "bodySHA256 in the URL does not match the body"
    plain = twilio(url="https://shop.example/hook")
    proof = signature(f"https://shop.example/hook?bodySHA256={HASH}")
    assert send(plain, JSON_BODY, proof, query=f"bodySHA256={HASH}").body == JSON_BODY


@pytest.mark.parametrize("end", ["&", "&x="], ids=["in the middle", "before another parameter"])
def test_the_text_of_a_message_does_not_cover_a_body(end: str) -> None:
    message = MESSAGE | {"Body": f"&bodySHA256={HASH}{end}"}
    proof = signature(signed_text(message))
    query = signed_text(message).partition("?")[2]
    assert NOT_PLAIN in rejection(twilio(), JSON_BODY, proof, query=query)
    headers = {"X-Twilio-Signature": proof.decode()}
    url = URL.partition("?")[0] + "?" + query
    with pytest.raises(SignatureRejected) as caught:
        onceward.verify("twilio", secret=SECRET, headers=headers, body=JSON_BODY, url=url)
    assert caught.value.check == "bodySHA256 is not the last parameter of the URL"


def test_a_second_hash_of_the_body_is_rejected() -> None:
    url = f"{URL}&bodySHA256={HASH}&bodySHA256={HASH}"
    headers = {"X-Twilio-Signature": signature(url).decode()}
    with pytest.raises(SignatureRejected) as caught:
        onceward.verify("twilio", secret=SECRET, headers=headers, body=JSON_BODY, url=url)
    assert caught.value.check == "bodySHA256 is not the last parameter of the URL"


def test_the_configured_url_pins_the_query() -> None:
    message = MESSAGE | {"Body": f"&bodySHA256={HASH}"}
    last = {name: value for name, value in message.items() if name <= "Body"}
    proof, query = signature(signed_text(last)), signed_text(last).partition("?")[2]
    assert query.endswith(f"bodySHA256={HASH}")
    assert "no signature matched" in rejection(twilio(), JSON_BODY, proof, query=query)
    assert send(twilio(), urlencode(last).encode(), proof, query="another=1")


def test_mandrill_has_no_hash_of_the_body() -> None:
    source = twilio(preset="mandrill")
    proof = signature(f"{URL}&bodySHA256={HASH}")
    check = rejection(source, JSON_BODY, proof, query=f"account=1&bodySHA256={HASH}")
    assert check == "the form is not a single field mandrill_events"


def test_a_form_of_mandrill_has_one_field() -> None:
    source = twilio(preset="mandrill")
    events = '[{"event":"open","_id":"1","ts":1,"msg":{"subject":"mandrill_events[{}]z"}}]'
    proof = signature(signed_text({"mandrill_events": events}))
    genuine = send(source, urlencode({"mandrill_events": events}).encode(), proof)
    assert genuine.identity.event_id == "open|1|1"
    before, _, after = events.partition("mandrill_events[{}]")
    recut = {"m": f"andrill_events{before}", "mandrill_events": "[{}]", "z": after[1:]}
    assert signed_text(recut) == signed_text({"mandrill_events": events})
    check = rejection(source, urlencode(recut).encode(), proof)
    assert check == "the form is not a single field mandrill_events"


# The URL.

URL_SIGNERS = [
    *("contentful", "hubspot", "mandrill", "messagebird", "square", "trello", "twilio"),
    "sinch",
]


def test_a_sender_that_signs_the_url_needs_a_configured_url(subtests: pytest.Subtests) -> None:
    for preset in URL_SIGNERS:
        with subtests.test(preset):
            with pytest.raises(ConfigurationError) as refused:
                make_source("hook", preset=preset, secrets=["YS1zZWNyZXQ="])
            (fault,) = refused.value.faults
            assert fault == (
                "source 'hook': url is required: the sender signs the public URL, and Host is not "
                "trusted; write url='https://YOUR-HOST/webhooks/hook', as registered with the "
                "provider"
            )
            url = "https://shop.example/hook"
            assert make_source("hook", preset=preset, secrets=["YS1zZWNyZXQ="], url=url).url == url
            assert make_source("hook", preset=preset, unsigned=True).unsigned


def test_the_query_of_a_sender_that_adds_to_it_is_taken_as_sent() -> None:
    for preset in ("messagebird", "mercadopago"):
        source = make_source("hook", preset=preset, secrets=[SECRET], url="https://a.example/h?x=1")
        assert source.public_url("id=7") == "https://a.example/h?id=7"
    for preset in ("square", "contentful"):
        source = make_source("hook", preset=preset, secrets=[SECRET], url="https://a.example/h?x=1")
        assert source.public_url("id=7") == "https://a.example/h?x=1"


def test_the_query_of_an_audience_is_the_registered_one() -> None:
    secret = f"push@project.iam.example:{rsa_pair().public}"
    url = "https://a.example/h?x=1"
    source = make_source("google-pubsub", scheme="oidc", secrets=[secret], url=url)
    assert source.public_url("x=2") == url


def test_a_messagebird_request_without_a_body_is_identified_by_its_query() -> None:
    source = make_source("hook", preset="messagebird", secrets=[SECRET], url="https://a.example/h")

    def event_id(query: str) -> str:
        signed = onceward.sign(
            "messagebird", secret=SECRET, body=b"", url=f"https://a.example/h?{query}", now=NOW
        )
        pairs = [(name.lower().encode(), text.encode()) for name, text in signed.headers.items()]
        events = source.verify(Request(Headers(pairs), b"", url=source.public_url(query)), NOW)
        assert isinstance(events, list)
        return events[0].identity.event_id

    assert event_id("id=7&status=sent") == "7|sent"
    assert event_id("id=7&status=delivered") == "7|delivered"
    queries = ("id=7&message=yes", "id=8&message=no", "id=&status=sent")
    assert len({event_id(query) for query in queries}) == len(queries)
    assert event_id("id=7&message=yes") == event_id("id=7&message=yes")


@pytest.mark.parametrize("value", ["7;request-id:r1", "7;ts:1"])
def test_the_ids_of_mercadopago_contain_no_separator(value: str) -> None:
    signed = onceward.sign(
        "mercadopago",
        secret=SECRET,
        headers={"x-request-id": "r1"},
        body=b"{}",
        url="https://a.example/h?data.id=7",
        now=NOW,
    )
    headers = {key: text for key, text in signed.headers.items() if key != "x-request-id"}
    url = f"https://a.example/h?{urlencode({'data.id': value})}"
    with pytest.raises(RequestRefused):
        onceward.verify("mercadopago", secret=SECRET, headers=headers, body=b"{}", url=url, now=NOW)
