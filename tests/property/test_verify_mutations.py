"""Mutated requests verify only if they still contain what was signed.

Each test starts from a genuine request and changes it slightly, so that it passes the first checks.
The expected result comes from `tests.signing`, an independent implementation of the schemes.
"""

import base64
import contextlib
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import pytest
import stripe
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.errors import RequestRefused, SignatureRejected
from onceward.http.errors import status_of
from onceward.model.events import Identity, invalid_text_reason
from onceward.sources.configure import make_source
from onceward.sources.presets import PRESETS
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Hmac, Signature
from onceward.sources.schemes.algorithms import as_text
from tests.signing import KEY, NOW, SECRET, URL, Sent, encoded, format_time, genuine, is_genuine

OLD_KEY: Final = b"whsec_the_previous_secret"
STRIPE: Final = make_source("stripe", secrets=[SECRET])
GITHUB: Final = make_source("github", secrets=[SECRET])
FAST: Final = settings(max_examples=200, deadline=None)
SHARED: Final = settings(max_examples=10, deadline=None)


def custom_scheme(**options: Any) -> Signature:
    scheme = make_source("custom", preset="hmac", secrets=[SECRET], **options).scheme
    assert type(scheme) is Signature
    return scheme


def is_plain(scheme: object) -> bool:
    """Return whether a scheme is an HMAC in one header, with any time in a header or list."""
    return (
        type(scheme) is Signature
        and isinstance(scheme.algorithm, Hmac)
        and scheme.at.startswith("header:")
        and not {"|", "json:"} & set(re.findall(r"\||json:", scheme.at + str(scheme.timestamp)))
    )


def with_text_keys(scheme: Signature) -> Signature:
    """Return the scheme with secrets as plain text."""
    assert isinstance(scheme.algorithm, Hmac)
    return replace(scheme, algorithm=replace(scheme.algorithm, secret_encoding=as_text))


STRIPE_SCHEME: Final = PRESETS["stripe"].scheme()
assert type(STRIPE_SCHEME) is Signature

# Every plain preset, the configurable options, and combinations that no preset uses yet.
SCHEMES: Final[dict[str, Signature]] = {
    **{
        f"{preset.name} {name}": with_text_keys(scheme)
        for preset in PRESETS.values()
        for name, scheme in preset.named_schemes.items()
        if type(scheme) is Signature and is_plain(scheme)
    },
    "another tolerance": with_text_keys(replace(STRIPE_SCHEME, tolerance_seconds=5)),
    "another header": custom_scheme(signature_header="X-Custom"),
    "a prefix": custom_scheme(signature_prefix="v1="),
    "SHA-512": Signature(at="header:X-Long", algorithm=Hmac("sha512"), encoding="base64url"),
    "the time last": Signature(
        at="header:X-Timed",
        separator=",",
        prefix="sig=",
        timestamp="list:ts=",
        content="{body}|{timestamp}",
        tolerance_seconds=60,
    ),
}


def verify(scheme: Signature, sent: Sent) -> None:
    keys = [key for secret in sent.keys for key in scheme.keys(secret)]
    request = Request(Headers(sent.headers), sent.body, url=URL)
    scheme.verify(keys, request, sent.now)


def is_verified(scheme: Signature, sent: Sent) -> bool:
    """Return whether the scheme verifies. Any error but SignatureRejected fails the test."""
    try:
        verify(scheme, sent)
    except SignatureRejected:
        return False
    return True


# Mutations.


def mutate_byte(data: st.DataObject, original: bytes) -> bytes:
    """Change, remove, duplicate or insert one byte, or cut the text."""
    at = data.draw(st.integers(0, max(len(original) - 1, 0)), label="at")
    byte = bytes([data.draw(st.integers(0, 255), label="byte")])
    return data.draw(
        st.sampled_from(
            [
                original[:at] + byte + original[at + 1 :],
                original[:at] + original[at + 1 :],
                original[:at] + original[at : at + 1] + original[at:],
                original[:at] + byte + original[at:],
                original[:at],
                original[at:],
            ]
        ),
        label="changed",
    )


def respell(data: st.DataObject, value: bytes) -> bytes:
    """Write the same text differently; few of the variants are valid."""
    return data.draw(
        st.sampled_from(
            [
                value.upper(),
                value.swapcase(),
                value.title(),
                b" " + value,
                value + b"\t",
                b'"%b"' % value,
                value.replace(b"=", b"%3D"),
                value.replace(b"=", b" = "),
                value.replace(b",", b", "),
                value.replace(b",", b";"),
                value.decode("latin-1").encode("utf-16"),
                base64.b64encode(value),
                re.sub(b"[0-9]", lambda digit: b"\xef\xbc" + bytes([digit[0][0] + 0x60]), value),
            ]
        ),
        label="respelled",
    )


def rearrange_items(data: st.DataObject, value: bytes) -> bytes:
    """Reorder, drop and duplicate the items of a list, and insert others."""
    junk = [b"", b"=", b"v1", b"v0=00", b"v1=", b"t=", b"t=1", b"sig=zz", b"v1=" + b"00" * 32]
    parts = data.draw(st.permutations(value.split(b",")), label="order")
    others = data.draw(st.lists(st.sampled_from([*junk, *parts]), max_size=12), label="others")
    dropped = data.draw(st.integers(0, len(parts)), label="dropped")
    first = data.draw(st.booleans(), label="others first")
    remaining = parts[:dropped] + parts[dropped + 1 :]
    return b",".join([*others, *remaining] if first else [*remaining, *others])


def sign_other_time(data: st.DataObject, scheme: Signature, sent: Sent) -> Sent:
    """Sign a timestamp in any format, valid or not."""
    near = st.integers(NOW - 700, NOW + 700).map(lambda seconds: format_time(scheme, seconds))
    odd = st.sampled_from(
        [
            *(b"", b"nan", b"-1", b"+%d" % NOW, b"0%d" % NOW, b"%d.0" % NOW, b" %d" % NOW),
            *(b"1_760_000_000", b"9" * 13, b"9" * 5000, b"1e9", b"0x1", b"\xd9\xa1", b"\xb2"),
        ]
    )
    return replace(
        genuine(scheme, sent.body, data.draw(near | odd, label="time")),
        now=sent.now,
        keys=sent.keys,
    )


def rename_header(data: st.DataObject, _: Signature, sent: Sent) -> Sent:
    """Move the signature to another header."""
    name = data.draw(st.sampled_from([b"X-Signed", b"the-signature", b""]), label="name")
    return replace(sent, headers=((name, sent.value), *sent.headers[1:]))


moments = st.floats(NOW - 400, NOW + 400) | st.sampled_from([float("nan"), float("inf")])
key_rings = st.sampled_from([(), (OLD_KEY,), (OLD_KEY, KEY), (KEY, KEY)])
MUTATIONS: Final[dict[str, Callable[[st.DataObject, Signature, Sent], Sent]]] = {
    "another time": sign_other_time,
    "another byte": lambda data, _, sent: sent.with_value(mutate_byte(data, sent.value)),
    "another spelling": lambda data, _, sent: sent.with_value(respell(data, sent.value)),
    "another list": lambda data, _, sent: sent.with_value(rearrange_items(data, sent.value)),
    "another body": lambda data, _, sent: replace(sent, body=mutate_byte(data, sent.body)),
    "another header": rename_header,
    "another clock": lambda data, _, sent: replace(sent, now=data.draw(moments, label="now")),
    "other secrets": lambda data, _, sent: replace(sent, keys=data.draw(key_rings, label="keys")),
}


def mutate(data: st.DataObject, scheme: Signature, sent: Sent) -> Sent:
    """Make one small change to a request, or to the receiver's clock or secrets."""
    name = data.draw(st.sampled_from(list(MUTATIONS)), label="mutation")
    return MUTATIONS[name](data, scheme, sent)


bodies = st.one_of(
    st.binary(max_size=200),
    st.just(b'{"id":"evt_1","type":"a","data":{"object":{"id":"o"}}}'),
    st.sampled_from([b"", b"null", b'{"id":', b"[" * 50_000, b'{"id":1e999}', b'{"id":"\xff"}']),
)


def test_a_mutated_request_verifies_only_if_it_contains_what_was_signed(
    subtests: pytest.Subtests,
) -> None:
    @SHARED
    @given(body=bodies, data=st.data())
    def check(scheme: Signature, body: bytes, data: st.DataObject) -> None:
        sent = genuine(scheme, body)
        assert is_verified(scheme, sent)
        for _ in range(data.draw(st.integers(1, 3), label="changes")):
            sent = mutate(data, scheme, sent)
        assert is_verified(scheme, sent) == is_genuine(scheme, sent)

    for name, scheme in SCHEMES.items():
        with subtests.test(name):
            check(scheme)


def test_a_repeated_signature_header_is_refused_with_any_values(subtests: pytest.Subtests) -> None:
    @SHARED
    @given(body=bodies, data=st.data())
    def check(scheme: Signature, body: bytes, data: st.DataObject) -> None:
        sent = genuine(scheme, body)
        other = mutate(data, scheme, sent)
        twice = data.draw(st.permutations([sent.headers[0], (sent.headers[0][0], other.value)]))
        with pytest.raises(RequestRefused) as refused:
            verify(scheme, replace(sent, headers=(*twice, *sent.headers[1:])))
        assert (status_of(refused.value), refused.value.code) == (400, "repeated_header")

    for name, scheme in SCHEMES.items():
        with subtests.test(name):
            check(scheme)


def equivalent_requests(scheme: Signature) -> list[Sent]:
    """Return a genuine request with its signature in every spelling that verifies."""
    sent = genuine(scheme, b"{}")
    equivalent = [sent]
    if scheme.encoding == "hex":
        prefix = sent.value.rpartition(b"=")[0] + b"=" if b"=" in sent.value else b""
        equivalent.append(sent.with_value(prefix + sent.value[len(prefix) :].upper()))
    if scheme.separator is not None:
        separator = scheme.separator.encode()
        *before, signed = sent.value.split(separator)
        wrong = scheme.prefix.encode() + encoded(scheme, b"\0" * 32)
        equivalent += [
            sent.with_value(separator.join(parts))
            for parts in (
                [signed, *before],
                [b"x=1", *before, b"", signed],
                [*before, *[wrong] * 9, signed],
            )
        ]
    return equivalent


def test_equivalent_signature_headers_verify() -> None:
    for name, scheme in SCHEMES.items():
        for equivalent in equivalent_requests(scheme):
            assert is_verified(scheme, equivalent), (name, equivalent)


def test_the_eleventh_signature_is_not_tried() -> None:
    lists = {name: scheme for name, scheme in SCHEMES.items() if scheme.separator}
    assert lists
    for name, scheme in lists.items():
        separator = (scheme.separator or "").encode()
        sent = genuine(scheme, b"{}")
        *before, right = sent.value.split(separator)
        wrong = scheme.prefix.encode() + encoded(scheme, b"\0" * 32)
        for others in range(12):
            crowded = sent.with_value(separator.join([*before, *[wrong] * others, right]))
            assert is_verified(scheme, crowded) == (others < 10), (name, others)


def test_mutations_cause_only_rejections() -> None:
    reject_mutations(5_000)


def reject_mutations(count: int) -> None:
    """Assert that mutations that verify are genuine for the independent implementation, and few."""
    random_source = random.Random(20261116)  # noqa: S311 - repeatable, not secret
    schemes = list(SCHEMES.values())
    originals = [genuine(scheme, b'{"id":"evt_1","type":"a"}') for scheme in schemes]
    still_genuine = 0
    for _ in range(count):
        chosen = random_source.randrange(len(schemes))
        scheme, sent = schemes[chosen], mutate_randomly(random_source, originals[chosen])
        verifies = is_verified(scheme, sent)
        still_genuine += verifies
        if verifies or not random_source.randrange(20):
            assert verifies == is_genuine(scheme, sent)
    assert 0 < still_genuine < count / 4


def mutate_randomly(random_source: random.Random, sent: Sent) -> Sent:
    """Change, insert or remove one byte in a header or in the body."""
    target = random_source.randrange(len(sent.headers) + 1)
    text = sent.body if target == len(sent.headers) else sent.headers[target][1]
    at = random_source.randrange(len(text) + 1)
    byte = bytes([random_source.randrange(256)])
    new_text = random_source.choice(
        [
            text[:at] + byte + text[at + 1 :],
            text[:at] + byte + text[at:],
            text[:at] + text[at + 1 :],
            text[:at],
            text[:at] + text[at : at + 1].swapcase() + text[at + 1 :],
        ]
    )
    if target == len(sent.headers):
        return replace(sent, body=new_text)
    headers = list(sent.headers)
    headers[target] = (headers[target][0], new_text)
    return replace(sent, headers=tuple(headers))


# Comparison with the Stripe SDK.


def stripe_accepts(header: bytes, body: bytes) -> bool:
    with patch("stripe._webhook.time.time", lambda: NOW):
        try:
            stripe.WebhookSignature.verify_header(body, header.decode(), SECRET, tolerance=300)
        except (stripe.SignatureVerificationError, UnicodeError, TypeError):
            return False
    return True


def accepts(header: bytes, body: bytes) -> bool:
    return is_verified(SCHEMES["stripe default"], Sent(((b"stripe-signature", header),), body))


@FAST
@given(body=st.text(max_size=100), timestamp=st.integers(NOW - 400, NOW))
def test_we_agree_with_the_stripe_sdk_on_its_own_signatures(body: str, timestamp: int) -> None:
    header = stripe.WebhookSignature.generate_signature_header(body, SECRET, timestamp).encode()
    assert accepts(header, body.encode()) == stripe_accepts(header, body.encode())


@FAST
@given(body=bodies, data=st.data())
def test_we_reject_every_request_that_the_stripe_sdk_rejects(
    body: bytes, data: st.DataObject
) -> None:
    header = genuine(SCHEMES["stripe default"], body).value
    # A value has no space at its ends: a server has stripped it.
    new_header, new_body = mutate_byte(data, header).strip(b" \t"), mutate_byte(data, body)
    with contextlib.suppress(UnicodeDecodeError):  # the SDK accepts only text
        new_body.decode()
        if accepts(new_header.lower(), new_body):
            assert stripe_accepts(new_header.lower(), new_body)


# Identification of genuine requests.


@FAST
@given(body=bodies, data=st.data())
def test_a_genuine_request_is_identified_or_refused_with_the_reason(
    body: bytes, data: st.DataObject
) -> None:
    sent = genuine(SCHEMES["stripe default"], mutate_byte(data, body))
    try:
        events = STRIPE.verify(Request(Headers(sent.headers), sent.body), NOW)
    except RequestRefused as refused:
        assert (status_of(refused), refused.code) == (422, "no_event_id")  # noqa: PT017
    else:
        assert isinstance(events, list)
        assert [invalid_text_reason(event.identity.event_id) for event in events] == [None]


@FAST
@given(body=st.binary(max_size=300))
def test_a_genuine_request_with_its_id_in_a_header_is_never_refused(body: bytes) -> None:
    sent = genuine(SCHEMES["github sha256"], body)
    headers = Headers([*sent.headers, (b"x-github-delivery", b"d")])
    assert GITHUB.verify(Request(headers, body), NOW) == [(Identity("d", ""), body, body, None)]


@FAST
@given(
    pairs=st.lists(
        st.tuples(
            st.sampled_from([b"stripe-signature", b"x-hub-signature-256", b"x-github-delivery"]),
            st.one_of(
                st.binary(max_size=100),
                st.text("tv01=,sha256", max_size=100).map(str.encode),
                st.just(genuine(SCHEMES["stripe default"], b"").value),
            ),
        ),
        max_size=4,
    ),
    body=bodies,
    now=st.one_of(st.floats(), st.just(float(NOW))),
)
def test_arbitrary_requests_cause_only_refusals(
    pairs: list[tuple[bytes, bytes]], body: bytes, now: float
) -> None:
    for source in (STRIPE, GITHUB):
        with pytest.raises(RequestRefused):
            source.verify(Request(Headers(pairs), body), now)
