"""Requests that are nearly right: they verify where they say the same, and else are refused.

Each begins as a genuine one and is changed a little, so that it gets past the first checks. What
must come of it is said a second time here, in other words than the code's.
"""

import base64
import contextlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

import pytest
import stripe
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.errors import RequestRefused, SignatureRejected
from onceward.model import Identity, text_fault
from onceward.providers import PRESETS
from onceward.sources import make_source
from onceward.verify import Headers, HmacScheme, Pairs, Part, Plain, verify

SECRET: Final = "whsec_a_secret_to_everybody"
KEY: Final = SECRET.encode()
OLD_KEY: Final = b"whsec_the_one_before"
NOW: Final = 1_760_000_000
STRIPE: Final = make_source("stripe", secrets=[SECRET])
GITHUB: Final = make_source("github", secrets=[SECRET])
FAST: Final = settings(max_examples=200, deadline=None)
SHARED: Final = settings(max_examples=100, deadline=None)


def by_hand(name: str, **options: Any) -> HmacScheme:
    scheme = make_source(name, secrets=[SECRET], **options).scheme
    assert isinstance(scheme, HmacScheme)
    return scheme


# Every preset, what can be set by hand, and what a scheme can say that no preset says yet.
SCHEMES: Final = {
    **{name: by_hand(name) for name in PRESETS},
    "another tolerance": by_hand("stripe", tolerance_seconds=5),
    "another header": by_hand("own", signature_header="X-Own"),
    "a prefix": by_hand("own", signature_prefix="v1="),
    "SHA-1": HmacScheme("X-Old", Plain(b"sha1="), digest="sha1"),
    "SHA-512": HmacScheme("X-Long", digest="sha512"),
    "the time last": HmacScheme(
        "X-Timed", Pairs(b"sig", b"ts"), (Part.BODY, b"|", Part.TIMESTAMP), tolerance_seconds=60
    ),
}


@dataclass(frozen=True)
class Sent:
    """A request on its way, and the secrets of who receives it."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    now: float = NOW
    keys: tuple[bytes, ...] = (KEY,)

    def with_value(self, value: bytes) -> "Sent":
        ((name, _), *others) = self.headers
        return replace(self, headers=((name, value), *others))

    @property
    def value(self) -> bytes:
        return self.headers[0][1]


def signature(scheme: HmacScheme, timestamp: bytes, body: bytes, key: bytes = KEY) -> bytes:
    parts = {Part.BODY: body, Part.TIMESTAMP: timestamp}
    content = b"".join(part if isinstance(part, bytes) else parts[part] for part in scheme.signed)
    return hmac.new(key, content, scheme.digest).hexdigest().encode()


def genuine(
    scheme: HmacScheme, body: bytes, timestamp: bytes = b"%d" % NOW, key: bytes = KEY
) -> Sent:
    signed = signature(scheme, timestamp, body, key)
    match scheme.layout:
        case Plain(prefix):
            value = prefix + signed
        case Pairs(name, time_name):
            value = b"%b=%b,%b=%b" % (time_name, timestamp, name, signed)
    return Sent(((scheme.header.lower().encode(), value),), body)


def is_genuine(scheme: HmacScheme, sent: Sent) -> bool:
    """Whether a request with one signature header says what the sender signed, and in time."""
    value = dict(sent.headers).get(scheme.header.lower().encode(), b"\n")
    match scheme.layout:
        case Plain(prefix):
            timestamp = b""
            claims = [value.removeprefix(prefix)] if value.startswith(prefix) else []
        case Pairs(name, time_name):
            pairs = value.split(b",", 64)
            claims = [pair[len(name) + 1 :] for pair in pairs if pair.startswith(name + b"=")]
            times = [pair for pair in pairs if pair.partition(b"=")[0] == time_name]
            if len(times) != 1 or not re.fullmatch(rb"%b=[0-9]{1,12}" % time_name, times[0]):
                return False
            timestamp = times[0][len(time_name) + 1 :]
    if scheme.tolerance_seconds is not None:
        off = sent.now - int(timestamp)
        if not -scheme.tolerance_seconds <= off <= scheme.tolerance_seconds:
            return False
    expected = {signature(scheme, timestamp, sent.body, key) for key in sent.keys if key}
    return any(claim.lower() in expected for claim in claims[:10])


def is_verified(scheme: HmacScheme, sent: Sent) -> bool:
    """What the code says. Anything but its one refusal goes through, and fails the test."""
    try:
        verify(scheme, sent.keys, Headers(sent.headers), sent.body, sent.now)
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


def resigned(data: st.DataObject, scheme: HmacScheme, sent: Sent) -> Sent:
    """A time of any spelling, rightly signed."""
    near = st.integers(NOW - 400, NOW + 400).map(lambda seconds: b"%d" % seconds)
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


def misnamed(data: st.DataObject, _: HmacScheme, sent: Sent) -> Sent:
    """The signature under another header's name."""
    name = data.draw(st.sampled_from([b"X-Signature", b"signature", b""]), label="name")
    return replace(sent, headers=((name, sent.value), (b"host", b"localhost")))


moments = st.floats(NOW - 400, NOW + 400) | st.sampled_from([float("nan"), float("inf")])
key_rings = st.sampled_from([(), (b"",), (OLD_KEY,), (b"", OLD_KEY, KEY), (KEY, KEY)])
ALTERATIONS: Final[dict[str, Callable[[st.DataObject, HmacScheme, Sent], Sent]]] = {
    "another time": resigned,
    "another byte": lambda data, _, sent: sent.with_value(changed(data, sent.value)),
    "another spelling": lambda data, _, sent: sent.with_value(respelt(data, sent.value)),
    "another list": lambda data, _, sent: sent.with_value(relisted(data, sent.value)),
    "another body": lambda data, _, sent: replace(sent, body=changed(data, sent.body)),
    "another header": misnamed,
    "another clock": lambda data, _, sent: replace(sent, now=data.draw(moments, label="now")),
    "other secrets": lambda data, _, sent: replace(sent, keys=data.draw(key_rings, label="keys")),
}


def altered(data: st.DataObject, scheme: HmacScheme, sent: Sent) -> Sent:
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
    scheme: HmacScheme, body: bytes, data: st.DataObject
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
    scheme: HmacScheme, body: bytes, data: st.DataObject
) -> None:
    sent = genuine(scheme, body)
    other = altered(data, scheme, sent)
    twice = [*sent.headers, (sent.headers[0][0], other.value)]
    with pytest.raises(RequestRefused) as refused:
        verify(scheme, sent.keys, Headers(data.draw(st.permutations(twice))), body, NOW)
    assert (refused.value.status, refused.value.code) == (400, "repeated_header")


@each_scheme
def test_what_says_the_same_in_other_words_verifies(scheme: HmacScheme) -> None:
    sent = genuine(scheme, b"{}")
    signed = signature(scheme, b"%d" % NOW, b"{}")
    same = [sent, sent.with_value(sent.value.replace(signed, signed.upper()))]
    if isinstance(scheme.layout, Pairs):
        first, second = sent.value.split(b",")
        wrong = second.replace(signed, b"00" * 32)
        same += [
            sent.with_value(b",".join(parts))
            for parts in (
                [second, first],
                [b"x=1", first, b"", second],
                [first, *[wrong] * 9, second],
            )
        ]
        same += [genuine(scheme, b"{}", b"0%d" % NOW)]
    assert [is_verified(scheme, it) for it in same] == [True] * len(same)


@each_scheme
def test_a_signature_by_an_empty_key_never_verifies(scheme: HmacScheme) -> None:
    sent = genuine(scheme, b"{}", key=b"")
    for keys in ((), (b"",), (b"", KEY), (KEY, b"")):
        assert not is_verified(scheme, replace(sent, keys=keys))


@pytest.mark.parametrize("name", ["stripe", "the time last"])
def test_the_eleventh_signature_is_not_tried(name: str) -> None:
    sent = genuine(SCHEMES[name], b"{}")
    time, right = sent.value.split(b",")
    wrong = right[:-64] + b"00" * 32
    for others in range(12):
        crowded = sent.with_value(b",".join([time, *[wrong] * others, right]))
        assert is_verified(SCHEMES[name], crowded) == (others < 10)


# Beside the Stripe SDK.


def stripe_accepts(header: bytes, body: bytes) -> bool:
    with patch("stripe._webhook.time.time", lambda: NOW):
        try:
            stripe.WebhookSignature.verify_header(body, header.decode(), SECRET, tolerance=300)
        except (stripe.SignatureVerificationError, UnicodeError, TypeError):
            return False
    return True


def accepts(header: bytes, body: bytes) -> bool:
    return is_verified(SCHEMES["stripe"], Sent(((b"stripe-signature", header),), body))


@FAST
@given(body=st.text(max_size=100), timestamp=st.integers(NOW - 400, NOW))
def test_the_stripe_sdk_and_we_agree_on_what_is_signed(body: str, timestamp: int) -> None:
    header = stripe.WebhookSignature.generate_signature_header(body, SECRET, timestamp).encode()
    assert accepts(header, body.encode()) == stripe_accepts(header, body.encode())


@FAST
@given(body=bodies, data=st.data())
def test_we_accept_nothing_that_the_stripe_sdk_refuses(body: bytes, data: st.DataObject) -> None:
    header = genuine(SCHEMES["stripe"], body).value
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
    sent = genuine(SCHEMES["stripe"], changed(data, body))
    try:
        identity = STRIPE.admit(Headers(sent.headers), sent.body, NOW)
    except RequestRefused as refused:
        assert (refused.status, refused.code) == (422, "no_event_id")  # noqa: PT017
    else:
        assert text_fault(identity.event_id) is None


@FAST
@given(body=st.binary(max_size=300))
def test_a_genuine_request_with_its_id_in_a_header_is_never_refused(body: bytes) -> None:
    sent = genuine(SCHEMES["github"], body)
    headers = Headers([*sent.headers, (b"x-github-delivery", b"d")])
    assert GITHUB.admit(headers, body, NOW) == Identity("d", "")


@FAST
@given(
    pairs=st.lists(
        st.tuples(
            st.sampled_from([b"stripe-signature", b"x-hub-signature-256", b"x-github-delivery"]),
            st.one_of(
                st.binary(max_size=100),
                st.text("tv01=,sha256", max_size=100).map(str.encode),
                st.just(genuine(SCHEMES["stripe"], b"").value),
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
