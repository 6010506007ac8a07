"""Requests that are nearly right: they verify where they say the same, and else are refused.

Each begins as a genuine one and is changed a little, so that it gets past the first checks. What
must come of it is said a second time here, in other words than the code's.
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

OLD_KEY: Final = b"whsec_the_one_before"
STRIPE: Final = make_source("stripe", secrets=[SECRET])
GITHUB: Final = make_source("github", secrets=[SECRET])
FAST: Final = settings(max_examples=200, deadline=None)
SHARED: Final = settings(max_examples=10, deadline=None)
MUTATIONS: Final = 200_000


def by_hand(**options: Any) -> Signature:
    scheme = make_source("own", secrets=[SECRET], **options).scheme
    assert type(scheme) is Signature
    return scheme


def is_plain(scheme: object) -> bool:
    """Whether a scheme is a keyed digest in one header, with a time in seconds if any."""
    return (
        type(scheme) is Signature
        and isinstance(scheme.algorithm, Hmac)
        and scheme.at.startswith("header:")
        and not {"|", "json:"} & set(re.findall(r"\||json:", scheme.at + str(scheme.timestamp)))
    )


def with_text_keys(scheme: Signature) -> Signature:
    """The same, but for how the secret is written."""
    assert isinstance(scheme.algorithm, Hmac)
    return replace(scheme, algorithm=replace(scheme.algorithm, secret_encoding=as_text))


STRIPE_SCHEME: Final = PRESETS["stripe"].scheme()
assert type(STRIPE_SCHEME) is Signature

# Every preset of this kind, what can be set by hand, and what a scheme can say that none says yet.
SCHEMES: Final[dict[str, Signature]] = {
    **{
        f"{preset.name} {name}": with_text_keys(scheme)
        for preset in PRESETS.values()
        for name, scheme in preset.named_schemes.items()
        if type(scheme) is Signature and is_plain(scheme)
    },
    "another tolerance": with_text_keys(replace(STRIPE_SCHEME, tolerance_seconds=5)),
    "another header": by_hand(signature_header="X-Own"),
    "a prefix": by_hand(signature_prefix="v1="),
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
    """What the code says. Anything but its one refusal goes through, and fails the test."""
    try:
        verify(scheme, sent)
    except SignatureRejected:
        return False
    return True


# Small changes.


def changed(data: st.DataObject, original: bytes) -> bytes:
    """The same bytes, but for one place."""
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


def respelt(data: st.DataObject, value: bytes) -> bytes:
    """The same text in another spelling, of which few are as good."""
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
        label="respelt",
    )


def relisted(data: st.DataObject, value: bytes) -> bytes:
    """The same list with parts in another order, dropped, doubled, or with others between."""
    junk = [b"", b"=", b"v1", b"v0=00", b"v1=", b"t=", b"t=1", b"sig=zz", b"v1=" + b"00" * 32]
    parts = data.draw(st.permutations(value.split(b",")), label="order")
    others = data.draw(st.lists(st.sampled_from([*junk, *parts]), max_size=12), label="others")
    dropped = data.draw(st.integers(0, len(parts)), label="dropped")
    first = data.draw(st.booleans(), label="others first")
    kept = parts[:dropped] + parts[dropped + 1 :]
    return b",".join([*others, *kept] if first else [*kept, *others])


def resigned(data: st.DataObject, scheme: Signature, sent: Sent) -> Sent:
    """A time of any spelling, rightly signed."""
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


def misnamed(data: st.DataObject, _: Signature, sent: Sent) -> Sent:
    """The signature under another header's name."""
    name = data.draw(st.sampled_from([b"X-Signed", b"the-signature", b""]), label="name")
    return replace(sent, headers=((name, sent.value), *sent.headers[1:]))


moments = st.floats(NOW - 400, NOW + 400) | st.sampled_from([float("nan"), float("inf")])
key_rings = st.sampled_from([(), (OLD_KEY,), (OLD_KEY, KEY), (KEY, KEY)])
ALTERATIONS: Final[dict[str, Callable[[st.DataObject, Signature, Sent], Sent]]] = {
    "another time": resigned,
    "another byte": lambda data, _, sent: sent.with_value(changed(data, sent.value)),
    "another spelling": lambda data, _, sent: sent.with_value(respelt(data, sent.value)),
    "another list": lambda data, _, sent: sent.with_value(relisted(data, sent.value)),
    "another body": lambda data, _, sent: replace(sent, body=changed(data, sent.body)),
    "another header": misnamed,
    "another clock": lambda data, _, sent: replace(sent, now=data.draw(moments, label="now")),
    "other secrets": lambda data, _, sent: replace(sent, keys=data.draw(key_rings, label="keys")),
}


def altered(data: st.DataObject, scheme: Signature, sent: Sent) -> Sent:
    """One small change to a request, or to who receives it."""
    name = data.draw(st.sampled_from(list(ALTERATIONS)), label="alteration")
    return ALTERATIONS[name](data, scheme, sent)


bodies = st.one_of(
    st.binary(max_size=200),
    st.just(b'{"id":"evt_1","type":"a","data":{"object":{"id":"o"}}}'),
    st.sampled_from([b"", b"null", b'{"id":', b"[" * 50_000, b'{"id":1e999}', b'{"id":"\xff"}']),
)
each_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)


@each_scheme
@SHARED
@given(body=bodies, data=st.data())
def test_a_request_verifies_where_it_says_what_was_signed_and_nowhere_else(
    scheme: Signature, body: bytes, data: st.DataObject
) -> None:
    sent = genuine(scheme, body)
    assert is_verified(scheme, sent)
    for _ in range(data.draw(st.integers(1, 3), label="changes")):
        sent = altered(data, scheme, sent)
    assert is_verified(scheme, sent) == is_genuine(scheme, sent)


@each_scheme
@SHARED
@given(body=bodies, data=st.data())
def test_a_signature_header_that_comes_twice_is_refused_whatever_the_two_say(
    scheme: Signature, body: bytes, data: st.DataObject
) -> None:
    sent = genuine(scheme, body)
    other = altered(data, scheme, sent)
    twice = data.draw(st.permutations([sent.headers[0], (sent.headers[0][0], other.value)]))
    with pytest.raises(RequestRefused) as refused:
        verify(scheme, replace(sent, headers=(*twice, *sent.headers[1:])))
    assert (status_of(refused.value), refused.value.code) == (400, "repeated_header")


@each_scheme
def test_what_says_the_same_in_other_words_verifies(scheme: Signature) -> None:
    sent = genuine(scheme, b"{}")
    same = [sent]
    if scheme.encoding == "hex":
        prefix = sent.value.rpartition(b"=")[0] + b"=" if b"=" in sent.value else b""
        same.append(sent.with_value(prefix + sent.value[len(prefix) :].upper()))
    if scheme.separator is not None:
        separator = scheme.separator.encode()
        *before, signed = sent.value.split(separator)
        wrong = scheme.prefix.encode() + encoded(scheme, b"\0" * 32)
        same += [
            sent.with_value(separator.join(parts))
            for parts in (
                [signed, *before],
                [b"x=1", *before, b"", signed],
                [*before, *[wrong] * 9, signed],
            )
        ]
    assert [is_verified(scheme, it) for it in same] == [True] * len(same)


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if scheme.separator])
def test_the_eleventh_signature_is_not_tried(name: str) -> None:
    scheme = SCHEMES[name]
    assert scheme.separator is not None
    separator = scheme.separator.encode()
    sent = genuine(scheme, b"{}")
    *before, right = sent.value.split(separator)
    wrong = scheme.prefix.encode() + encoded(scheme, b"\0" * 32)
    for others in range(12):
        crowded = sent.with_value(separator.join([*before, *[wrong] * others, right]))
        assert is_verified(scheme, crowded) == (others < 10)


def test_two_hundred_thousand_small_changes_make_nothing_but_refusals() -> None:
    """What is still genuine is said by the other words above."""
    chance = random.Random(20261116)  # noqa: S311 - repeatable, not secret
    named = list(SCHEMES.values())
    originals = [genuine(scheme, b'{"id":"evt_1","type":"a"}') for scheme in named]
    still_genuine = 0
    for _ in range(MUTATIONS):
        chosen = chance.randrange(len(named))
        scheme, sent = named[chosen], scrambled(chance, originals[chosen])
        verdict = is_verified(scheme, sent)
        still_genuine += verdict
        if verdict or not chance.randrange(20):
            assert verdict == is_genuine(scheme, sent)
    assert 0 < still_genuine < MUTATIONS / 4


def scrambled(chance: random.Random, sent: Sent) -> Sent:
    """A request with one byte changed, added or taken away, in a header or in the body."""
    target = chance.randrange(len(sent.headers) + 1)
    text = sent.body if target == len(sent.headers) else sent.headers[target][1]
    at = chance.randrange(len(text) + 1)
    byte = bytes([chance.randrange(256)])
    changed_text = chance.choice(
        [
            text[:at] + byte + text[at + 1 :],
            text[:at] + byte + text[at:],
            text[:at] + text[at + 1 :],
            text[:at],
            text[:at] + text[at : at + 1].swapcase() + text[at + 1 :],
        ]
    )
    if target == len(sent.headers):
        return replace(sent, body=changed_text)
    headers = list(sent.headers)
    headers[target] = (headers[target][0], changed_text)
    return replace(sent, headers=tuple(headers))


# Beside the Stripe SDK.


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
def test_the_stripe_sdk_and_we_agree_on_what_is_signed(body: str, timestamp: int) -> None:
    header = stripe.WebhookSignature.generate_signature_header(body, SECRET, timestamp).encode()
    assert accepts(header, body.encode()) == stripe_accepts(header, body.encode())


@FAST
@given(body=bodies, data=st.data())
def test_we_accept_nothing_that_the_stripe_sdk_refuses(body: bytes, data: st.DataObject) -> None:
    header = genuine(SCHEMES["stripe default"], body).value
    changed_header, changed_body = changed(data, header), changed(data, body)
    with contextlib.suppress(UnicodeDecodeError):  # the SDK takes text only
        changed_body.decode()
        if accepts(changed_header.lower(), changed_body):
            assert stripe_accepts(changed_header.lower(), changed_body)


# What is genuine, and then?


@FAST
@given(body=bodies, data=st.data())
def test_a_genuine_request_is_identified_or_refused_with_the_reason(
    body: bytes, data: st.DataObject
) -> None:
    sent = genuine(SCHEMES["stripe default"], changed(data, body))
    try:
        admitted = STRIPE.admit(Request(Headers(sent.headers), sent.body), NOW)
    except RequestRefused as refused:
        assert (status_of(refused), refused.code) == (422, "no_event_id")  # noqa: PT017
    else:
        assert isinstance(admitted, list)
        assert [invalid_text_reason(identity.event_id) for identity, _ in admitted] == [None]


@FAST
@given(body=st.binary(max_size=300))
def test_a_genuine_request_with_its_id_in_a_header_is_never_refused(body: bytes) -> None:
    sent = genuine(SCHEMES["github sha256"], body)
    headers = Headers([*sent.headers, (b"x-github-delivery", b"d")])
    assert GITHUB.admit(Request(headers, body), NOW) == [(Identity("d", ""), body)]


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
def test_no_request_at_all_makes_anything_but_a_refusal(
    pairs: list[tuple[bytes, bytes]], body: bytes, now: float
) -> None:
    for source in (STRIPE, GITHUB):
        with contextlib.suppress(RequestRefused):
            source.admit(Request(Headers(pairs), body), now)
