"""A request that does not verify is explained, and what would help is said."""

import json
from typing import Any

import pytest

import onceward
from onceward.sources.configure import make_source
from onceward.sources.diagnose import Diagnosis, diagnose
from onceward.sources.outgoing import encode_header
from onceward.sources.request import Headers, Request
from onceward.sources.source import Source

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"id":"evt_1","type":"invoice.paid","data":{"object":{"id":"in_1"}}}'
NOW = 1_790_000_000.0
URL = "https://shop.example/webhooks/square"


def source(preset: str, secret: str = SECRET, **options: Any) -> Source:
    return make_source("source", preset=preset, secrets=[secret], **options)


def signed(
    preset: str, body: bytes = BODY, secret: str = SECRET, now: float = NOW, **given: Any
) -> Request:
    verifies = onceward.sign(preset, secret=secret, body=body, now=now, url=URL, **given)
    pairs = [
        (name.lower().encode(), encode_header(value)) for name, value in verifies.headers.items()
    ]
    return Request(Headers(pairs), verifies.body, url=verifies.url)


def states(found: Diagnosis) -> dict[str, str]:
    return {check.name: check.state for check in found.checks}


def with_body(request: Request, body: bytes) -> Request:
    return Request(request.headers, body, url=request.url)


def test_a_genuine_request_passes_every_check() -> None:
    found = diagnose(source("stripe"), signed("stripe"), NOW)
    assert found.verified
    assert set(states(found).values()) == {"passed"}
    assert found.checks[-1].detail == f"evt_1, invoice.paid about in_1, {len(BODY)} bytes"
    assert found.hints == ()


def test_the_check_that_failed_stands_between_those_before_and_after_it() -> None:
    found = diagnose(source("stripe", "another-secret"), signed("stripe"), NOW)
    assert not found.verified
    assert list(states(found).items()) == [
        ("there is a proof", "passed"),
        ("its time is near enough", "passed"),
        ("it is written as it should be", "passed"),
        ("it was made with one of the secrets", "failed"),
        ("it tells of an event", "not reached"),
    ]
    (hint,) = found.hints
    assert hint.startswith("The secret is another, or the body or the URL was changed")


def test_no_text_of_it_holds_a_secret_or_a_signature() -> None:
    for request in (signed("stripe"), signed("stripe", secret="another-secret")):
        told = repr(diagnose(source("stripe"), request, NOW))
        assert SECRET not in told
        assert (request.headers.get(b"stripe-signature") or b"").decode()[-20:] not in told


def test_one_that_is_late_is_told_apart_from_one_that_is_forged() -> None:
    late = diagnose(source("stripe"), signed("stripe"), NOW + 1000)
    assert "Apart from its time it verifies" in late.hints[0]
    forged = diagnose(source("stripe"), with_body(signed("stripe"), b"{}"), NOW + 1000)
    assert forged.hints == ()


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        (BODY + b"\n", "without the line break at its end"),
        (json.dumps(json.loads(BODY)).encode(), "as compact JSON"),
        (json.dumps(json.loads(BODY), indent=2).encode(), "as compact JSON"),
        (b"\xef\xbb\xbf" + BODY, "without a byte order mark"),
    ],
)
def test_a_body_that_was_written_anew_on_the_way_is_found(changed: bytes, hint: str) -> None:
    found = diagnose(source("stripe"), with_body(signed("stripe"), changed), NOW)
    assert any(hint in text for text in found.hints)


def test_a_url_that_a_proxy_changed_is_found() -> None:
    request = signed("square")
    request = Request(request.headers, request.body, url=URL.replace("https", "http") + "/")
    (hint,) = diagnose(source("square"), request, NOW).hints
    assert URL in hint


def test_a_secret_that_is_written_otherwise_is_found() -> None:
    request = signed("standard-webhooks", headers={"webhook-id": "1"})
    other = make_source(
        "source",
        preset="standard-webhooks",
        scheme=onceward.Signature(
            at="header:webhook-signature",
            separator=" ",
            prefix="v1,",
            encoding="base64",
            timestamp="header:webhook-timestamp",
            content="{header:webhook-id}.{timestamp}.{body}",
        ),
        secrets=[SECRET],
    )
    assert "It verifies with the secret decoded from base64." in diagnose(other, request, NOW).hints


def test_another_sender_and_another_scheme_are_found() -> None:
    found = diagnose(source("stripe"), signed("github"), NOW)
    assert any("preset='github'" in hint for hint in found.hints)
    sha1 = diagnose(source("github"), signed("github", scheme="sha1"), NOW)
    assert "It verifies with scheme='sha1'." in sha1.hints


def test_what_has_no_usable_id_verifies_and_is_refused() -> None:
    found = diagnose(source("stripe"), signed("stripe", b"{}"), NOW)
    assert not found.verified
    assert (found.checks[-1].state, found.checks[-1].detail) == ("failed", "json:id is missing")


def test_a_question_is_told_from_an_event() -> None:
    asked = b'{"type":"url_verification","challenge":"x"}'
    found = diagnose(source("slack"), signed("slack", asked), NOW)
    assert found.checks[-1].name == "it asks for an answer"


def test_a_header_that_stands_there_twice_is_told() -> None:
    pairs = [(b"stripe-signature", b"t=1,v1=00"), (b"stripe-signature", b"t=1,v1=00")]
    found = diagnose(source("stripe"), Request(Headers(pairs), BODY), NOW)
    assert "occurs more than once" in found.checks[0].detail
