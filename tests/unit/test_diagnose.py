"""A diagnosis shows the result of each check and hints at the cause of a rejection."""

import gzip
import json
import zlib
from typing import Any

import pytest

import onceward
from onceward.sources import diagnose as diagnose_module
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
    preset: str, body: bytes = BODY, secret: str = SECRET, now: float = NOW, **options: Any
) -> Request:
    request = onceward.sign(preset, secret=secret, body=body, now=now, url=URL, **options)
    pairs = [
        (name.lower().encode(), encode_header(value)) for name, value in request.headers.items()
    ]
    return Request(Headers(pairs), request.body, url=request.url)


def states(diagnosis: Diagnosis) -> dict[str, str]:
    return {check.name: check.state for check in diagnosis.checks}


def with_body(request: Request, body: bytes) -> Request:
    return Request(request.headers, body, url=request.url)


def test_a_genuine_request_passes_every_check() -> None:
    diagnosis = diagnose(source("stripe"), signed("stripe"), NOW)
    assert diagnosis.verified
    assert set(states(diagnosis).values()) == {"passed"}
    assert diagnosis.checks[-1].detail == f"evt_1, invoice.paid, reference in_1, {len(BODY)} bytes"
    assert diagnosis.hints == ()


@pytest.mark.parametrize(
    ("preset", "body", "options", "covered"),
    [
        ("stripe", BODY, {}, f"covers {len(BODY)} bytes of body"),
        ("twilio", b"MessageSid=SM1", {"url": URL}, "covers the URL, the text of all form fields"),
        ("telegram", b'{"update_id":1}', {}, "covers nothing"),
    ],
)
def test_a_match_says_what_the_proof_covers(
    preset: str, body: bytes, options: dict[str, Any], covered: str
) -> None:
    diagnosis = diagnose(source(preset, **options), signed(preset, body), NOW)
    details = {check.name: check.detail for check in diagnosis.checks}
    assert f"; {covered}" in details["signature matches a secret"]


def test_checks_before_the_failed_one_pass_and_later_ones_are_not_reached() -> None:
    diagnosis = diagnose(source("stripe", "another-secret"), signed("stripe"), NOW)
    assert not diagnosis.verified
    assert list(states(diagnosis).items()) == [
        ("signature is present", "passed"),
        ("timestamp is within the tolerance", "passed"),
        ("signature is well-formed", "passed"),
        ("signature matches a secret", "failed"),
        ("event is identified", "not reached"),
    ]
    (hint,) = diagnosis.hints
    assert hint.startswith("The secret is wrong, or the body or URL was changed")


def test_a_diagnosis_contains_no_secret_and_no_signature() -> None:
    for request in (signed("stripe"), signed("stripe", secret="another-secret")):
        text = repr(diagnose(source("stripe"), request, NOW))
        assert SECRET not in text
        assert (request.headers.get(b"stripe-signature") or b"").decode()[-20:] not in text


def test_a_late_request_is_distinguished_from_a_forged_one() -> None:
    late = diagnose(source("stripe"), signed("stripe"), NOW + 1000)
    assert "Only the timestamp is rejected" in late.hints[0]
    forged = diagnose(source("stripe"), with_body(signed("stripe"), b"{}"), NOW + 1000)
    assert forged.hints == ()


def test_a_body_that_was_changed_in_transit_is_recognised(subtests: pytest.Subtests) -> None:
    for changed, hint in [
        (BODY + b"\n", "without its trailing line break"),
        (json.dumps(json.loads(BODY)).encode(), "as compact JSON"),
        (json.dumps(json.loads(BODY), indent=2).encode(), "as compact JSON"),
        (b"\xef\xbb\xbf" + BODY, "without its byte order mark"),
    ]:
        with subtests.test(changed=changed):
            diagnosis = diagnose(source("stripe"), with_body(signed("stripe"), changed), NOW)
            assert any(hint in text for text in diagnosis.hints)


def with_header(request: Request, name: bytes, value: bytes) -> Request:
    return Request(Headers([*request.headers.pairs, (name, value)]), request.body, url=request.url)


GZIPPED_HINT = (
    "The body is gzip-compressed, but the sender signed the uncompressed body: decompress it first."
)


@pytest.mark.parametrize("delay", [0, 1000])
def test_a_compressed_body_is_recognised(delay: float) -> None:
    compressed = with_body(signed("stripe"), gzip.compress(BODY))
    assert diagnose(source("stripe"), compressed, NOW + delay).hints == (GZIPPED_HINT,)
    deflated = with_header(
        with_body(signed("stripe"), zlib.compress(BODY)), b"content-encoding", b"deflate"
    )
    assert diagnose(source("stripe"), deflated, NOW + delay).hints == (
        GZIPPED_HINT.replace("gzip", "deflate"),
    )


def test_a_compressed_body_with_another_secret_blames_both() -> None:
    compressed = with_body(signed("stripe"), gzip.compress(BODY))
    first, second = diagnose(source("stripe", "another-secret"), compressed, NOW).hints
    assert first == "The body is gzip-compressed. Most senders sign the uncompressed body."
    assert second.startswith("The secret is wrong")


def test_a_compressed_body_is_decompressed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed = with_body(signed("stripe"), gzip.compress(BODY))
    monkeypatch.setattr(diagnose_module, "MAX_DECOMPRESSED_BYTES", len(BODY) - 1)
    assert GZIPPED_HINT not in diagnose(source("stripe"), compressed, NOW).hints


def test_a_body_that_only_claims_to_be_compressed_is_noted() -> None:
    request = with_header(signed("stripe"), b"content-encoding", b"gzip")
    first, _ = diagnose(source("stripe", "another-secret"), request, NOW).hints
    assert first.startswith("The Content-Encoding is gzip, but the body is not compressed")


@pytest.mark.parametrize("delay", [0, 1000])
def test_a_request_for_another_source_of_the_app_is_recognised(delay: float) -> None:
    others = [
        make_source("github", secrets=["the-secret-of-github"]),
        make_source("stripe", secrets=["whsec_of_another_account"]),
        make_source("stripe_eu", preset="stripe", secrets=[SECRET]),
        make_source("open", preset="hmac", unsigned=True),
    ]
    hint = "The request verifies as source '{0}' of this app: send it to /webhooks/{0}."
    for mine, sent, expected in (
        (others[1], signed("stripe"), "stripe_eu"),
        (others[1], signed("github", secret="the-secret-of-github"), "github"),
    ):
        diagnosis = diagnose(mine, sent, NOW + delay, others)
        assert diagnosis.hints == (hint.format(expected),)
        assert not diagnosis.verified


def test_a_late_request_with_a_changed_body_is_recognised() -> None:
    diagnosis = diagnose(source("stripe"), with_body(signed("stripe"), BODY + b"\n"), NOW + 1000)
    assert "without its trailing line break" in diagnosis.hints[0]


def test_a_secret_that_was_copied_badly_is_recognised(subtests: pytest.Subtests) -> None:
    for configured, hint in [
        (f" {SECRET}", "without the whitespace around the secret"),
        (f'"{SECRET}"', "without the quotes around the secret"),
        (f"STRIPE_SECRET='{SECRET}'", "with the part of the secret after the ="),
        (SECRET.removeprefix("whsec_"), "with the prefix whsec_ before the secret"),
    ]:
        with subtests.test(configured=configured):
            copied = make_source("stripe", secrets=[configured.encode()])  # a str would be refused
            diagnosis = diagnose(copied, signed("stripe"), NOW)
            assert diagnosis.hints == (f"The request verifies {hint}.",)


def test_a_text_that_cannot_be_the_secret_is_recognised() -> None:
    diagnosis = diagnose(source("stripe", "${STRIPE_SECRET}"), signed("stripe"), NOW)
    assert diagnosis.hints[0].startswith("The secret looks like a placeholder")
    assert "STRIPE_SECRET" not in repr(diagnosis)


def test_a_url_that_a_proxy_changed_is_recognised() -> None:
    request = signed("square")
    request = Request(request.headers, request.body, url=URL.replace("https", "http") + "/")
    (hint,) = diagnose(source("square", url=URL), request, NOW).hints
    assert URL in hint


def test_a_secret_with_another_encoding_is_recognised() -> None:
    request = signed("standard-webhooks", headers={"webhook-id": "1"})
    plain = make_source(
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
    assert (
        "The request verifies with the secret decoded from base64."
        in diagnose(plain, request, NOW).hints
    )


def test_another_preset_or_scheme_is_recognised() -> None:
    diagnosis = diagnose(source("stripe"), signed("github"), NOW)
    assert any("preset='github'" in hint for hint in diagnosis.hints)
    sha1 = diagnose(source("github"), signed("github", scheme="sha1"), NOW)
    assert "The request verifies with scheme='sha1'." in sha1.hints


def test_a_request_without_an_id_fails_only_the_last_check() -> None:
    diagnosis = diagnose(source("stripe"), signed("stripe", b"{}"), NOW)
    assert not diagnosis.verified
    assert (diagnosis.checks[-1].state, diagnosis.checks[-1].detail) == (
        "failed",
        "json:id is missing",
    )


def test_a_challenge_is_distinguished_from_an_event() -> None:
    challenge = b'{"type":"url_verification","challenge":"x"}'
    diagnosis = diagnose(source("slack"), signed("slack", challenge), NOW)
    assert diagnosis.checks[-1].name == "challenge is answered"


def test_a_repeated_signature_header_is_reported() -> None:
    pairs = [(b"stripe-signature", b"t=1,v1=00"), (b"stripe-signature", b"t=1,v1=00")]
    diagnosis = diagnose(source("stripe"), Request(Headers(pairs), BODY), NOW)
    assert "occurs more than once" in diagnosis.checks[0].detail
