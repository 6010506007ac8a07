"""Requests that are nearly right: whatever is changed, they are refused and nothing crashes."""

import contextlib
import hmac
from typing import Final
from unittest.mock import patch

import stripe
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onceward.errors import RequestRefused, SignatureRejected
from onceward.model import Identity, text_fault
from onceward.providers import PRESETS
from onceward.sources import make_source
from onceward.verify import Headers, verify

SECRET: Final = "whsec_a_secret_to_everybody"
KEY: Final = SECRET.encode()
NOW: Final = 1_760_000_000
STRIPE: Final = make_source("stripe", secrets=[SECRET])
GITHUB: Final = make_source("github", secrets=[SECRET])
FAST: Final = settings(max_examples=200, deadline=None)

bodies = st.one_of(
    st.binary(max_size=200),
    st.just(b'{"id":"evt_1","type":"a","data":{"object":{"id":"o"}}}'),
    st.sampled_from([b"", b"null", b'{"id":', b"[" * 50_000, b'{"id":1e999}', b'{"id":"\xff"}']),
)
mutations = st.sampled_from(["flip", "drop", "double", "insert", "truncate"])


def stripe_header(body: bytes, timestamp: int = NOW) -> bytes:
    content = f"{timestamp}.".encode() + body
    return f"t={timestamp},v1={hmac.digest(KEY, content, 'sha256').hex()}".encode()


def github_header(body: bytes) -> bytes:
    return b"sha256=" + hmac.digest(KEY, body, "sha256").hex().encode()


def mutated(data: st.DataObject, original: bytes) -> bytes:
    at = data.draw(st.integers(0, max(len(original) - 1, 0)), label="at")
    byte = data.draw(st.integers(0, 255), label="byte")
    match data.draw(mutations, label="mutation"):
        case "flip":
            return original[:at] + bytes([byte]) + original[at + 1 :]
        case "drop":
            return original[:at] + original[at + 1 :]
        case "double":
            return original[:at] + original[at : at + 1] + original[at:]
        case "insert":
            return original[:at] + bytes([byte]) + original[at:]
        case _:
            return original[:at]


def stripe_accepts(header: bytes, body: bytes) -> bool:
    with patch("stripe._webhook.time.time", lambda: NOW):
        try:
            stripe.WebhookSignature.verify_header(body, header.decode(), SECRET, tolerance=300)
        except (stripe.SignatureVerificationError, UnicodeError, TypeError):
            return False
    return True


def accepts(header: bytes, body: bytes) -> bool:
    headers = Headers([(b"stripe-signature", header)])
    try:
        verify(PRESETS["stripe"].scheme, [KEY], headers, body, NOW)
    except SignatureRejected:
        return False
    return True


@FAST
@given(body=bodies, data=st.data())
def test_a_changed_body_never_verifies(body: bytes, data: st.DataObject) -> None:
    changed = mutated(data, body)
    assume(changed != body)
    assert not accepts(stripe_header(body), changed)


@FAST
@given(body=bodies, off=st.integers(-300, 300).filter(bool))
def test_a_changed_timestamp_never_verifies(body: bytes, off: int) -> None:
    signature = stripe_header(body).partition(b",")[2]
    assert not accepts(f"t={NOW + off},".encode() + signature, body)


@FAST
@given(body=bodies, data=st.data())
def test_a_changed_signature_header_verifies_only_where_it_says_the_same(
    body: bytes, data: st.DataObject
) -> None:
    header = stripe_header(body)
    changed = mutated(data, header)
    if accepts(changed, body):
        assert set(header.split(b",")) <= set(changed.lower().split(b","))


@FAST
@given(body=bodies, data=st.data())
def test_a_changed_prefixed_signature_verifies_only_where_it_says_the_same(
    body: bytes, data: st.DataObject
) -> None:
    header = github_header(body)
    changed = mutated(data, header)
    headers = Headers([(b"x-hub-signature-256", changed), (b"x-github-delivery", b"d1")])
    try:
        GITHUB.admit(headers, body, NOW)
    except SignatureRejected:
        return
    assert changed.lower() == header


@FAST
@given(body=st.text(max_size=100), timestamp=st.integers(NOW - 400, NOW))
def test_the_stripe_sdk_and_we_agree_on_what_is_signed(body: str, timestamp: int) -> None:
    header = stripe.WebhookSignature.generate_signature_header(body, SECRET, timestamp).encode()
    assert accepts(header, body.encode()) == stripe_accepts(header, body.encode())


@FAST
@given(body=bodies, data=st.data())
def test_we_accept_nothing_that_the_stripe_sdk_refuses(body: bytes, data: st.DataObject) -> None:
    header = stripe_header(body)
    changed_header, changed_body = mutated(data, header), mutated(data, body)
    with contextlib.suppress(UnicodeDecodeError):  # the SDK takes text only
        changed_body.decode()
        if accepts(changed_header.lower(), changed_body):
            assert stripe_accepts(changed_header.lower(), changed_body)


@FAST
@given(body=bodies, data=st.data())
def test_a_genuine_request_is_identified_or_refused_with_the_reason(
    body: bytes, data: st.DataObject
) -> None:
    body = mutated(data, body)
    try:
        identity = STRIPE.admit(Headers([(b"stripe-signature", stripe_header(body))]), body, NOW)
    except RequestRefused as refused:
        assert (refused.status, refused.code) == (422, "no_event_id")  # noqa: PT017
    else:
        assert text_fault(identity.event_id) is None


@FAST
@given(body=st.binary(max_size=300))
def test_a_genuine_request_with_its_id_in_a_header_is_never_refused(body: bytes) -> None:
    headers = Headers([(b"x-hub-signature-256", github_header(body)), (b"x-github-delivery", b"d")])
    assert GITHUB.admit(headers, body, NOW) == Identity("d", "")


@FAST
@given(
    pairs=st.lists(
        st.tuples(
            st.sampled_from([b"stripe-signature", b"x-hub-signature-256", b"x-github-delivery"]),
            st.one_of(
                st.binary(max_size=100),
                st.text("tv01=,sha256", max_size=100).map(str.encode),
                st.just(stripe_header(b"")),
            ),
        ),
        max_size=4,
    ),
    body=bodies,
    now=st.one_of(st.floats(), st.just(float(NOW))),
)
def test_no_request_at_all_makes_anything_but_a_refusal(
    pairs: list[tuple[bytes, bytes]], body: bytes, now: float
) -> None:
    for source in (STRIPE, GITHUB):
        with contextlib.suppress(RequestRefused):
            source.admit(Headers(pairs), body, now)
