"""The values that a signature joins have one reading: a moved boundary is rejected."""

import hmac
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets import PRESETS
from onceward.sources.request import Headers, Request
from onceward.sources.schemes import Signature
from onceward.sources.schemes.times import TimeFormat
from tests.keys import SCHEMES, pair_for
from tests.signing import NOW, URL, format_time

SECRET: Final = "a-secret-of-the-test"
BODY: Final = (
    b'5.{"id":"e.1760000000.x:1760000000:","a":"2025-10-09T08:53:20Z|1760000000|",'
    b'"b":"2025-10-09T08:53:20.123456789Z:1760000000000:"}1760000000'
)
"""A body in which every kind of boundary occurs again."""

JOINED: Final = [
    (f"{preset.name}-{name}", preset.name, scheme)
    for preset, name, scheme in SCHEMES
    if isinstance(scheme, Signature) and len(re.findall(r"\{", scheme.content)) > 1
]


def placeholders(scheme: Signature) -> list[str]:
    return re.findall(r"\{([^}]*)\}", scheme.content)


def read(scheme: Signature, outgoing: OutgoingRequest, name: str) -> bytes | None:
    """Return a value that an attacker can set in the request, or None."""
    if name == "body":
        return outgoing.body
    selector = scheme.timestamp if name == "timestamp" else name
    assert selector is not None
    if selector.startswith("list:"):
        return format_time(scheme)
    if not selector.startswith("header:"):
        return None
    headers = {key.lower(): value.encode() for key, value in outgoing.headers.items()}
    keys = [choice.removeprefix("header:").lower() for choice in selector.split("|")]
    return next((headers[key] for key in keys if key in headers), None)


def replaced(scheme: Signature, outgoing: OutgoingRequest, changes: dict[str, bytes]) -> Request:
    """Return the request with other values at their places."""
    headers = {name.lower().encode(): value.encode() for name, value in outgoing.headers.items()}
    body = outgoing.body
    for name, value in changes.items():
        selector = (scheme.timestamp or "") if name == "timestamp" else name
        if name == "body":
            body = value
        elif selector.startswith("list:"):
            key = scheme.at.removeprefix("header:").lower().encode()
            headers[key] = headers[key].replace(format_time(scheme), value, 1)
        else:
            choices = [item.removeprefix("header:").lower() for item in selector.split("|")]
            headers[next(c for c in choices if c.encode() in headers).encode()] = value
    return Request(Headers(headers.items()), body, url=outgoing.url)


def moved(scheme: Signature, outgoing: OutgoingRequest) -> Iterator[Request]:
    """Yield every request whose joined text is the same and whose values are others."""
    names = placeholders(scheme)
    texts = re.split(r"\{[^}]*\}", scheme.content)
    for first, second, between in zip(names, names[1:], texts[1:], strict=False):
        left, right = read(scheme, outgoing, first), read(scheme, outgoing, second)
        if left is None or right is None:
            continue
        whole, separator = left + between.encode() + right, between.encode()
        for at in range(len(whole) - len(separator) + 1):
            if at != len(left) and whole.startswith(separator, at):
                values = whole[:at], whole[at + len(separator) :]
                yield replaced(scheme, outgoing, dict(zip((first, second), values, strict=True)))


def moved_over_three(scheme: Signature, outgoing: OutgoingRequest) -> Iterator[Request]:
    """Yield requests that move the boundaries on both sides of the timestamp."""
    names = placeholders(scheme)
    if len(names) != 3 or names[1] != "timestamp":
        return
    values = [read(scheme, outgoing, name) or b"" for name in names]
    _, first, second, _ = [text.encode() for text in re.split(r"\{[^}]*\}", scheme.content)]
    whole = values[0] + first + values[1] + second + values[2]
    for found in re.finditer(re.escape(first) + rb"([0-9T:.Z-]{4,40})" + re.escape(second), whole):
        others = whole[: found.start()], found[1], whole[found.end() :]
        if others != tuple(values):
            yield replaced(scheme, outgoing, dict(zip(names, others, strict=True)))


def signed(name: str, scheme: Signature) -> tuple[OutgoingRequest, str]:
    pair = pair_for(name, scheme)
    headers = {"content-type": "application/json"}
    for value in placeholders(scheme):
        if value.startswith("header:"):
            headers.setdefault(value.split("|")[0].removeprefix("header:"), "an-id-1")
    is_json = "{json:" in scheme.content
    outgoing = OutgoingRequest(
        headers, b'{"signature":{"token":"1760000000"}}' if is_json else BODY, url=URL
    )
    scheme.sign(pair.private, outgoing, NOW)
    return outgoing, pair.public


def test_a_moved_boundary_is_rejected(subtests: pytest.Subtests) -> None:
    for label, name, scheme in JOINED:
        with subtests.test(label):
            outgoing, secret = signed(name, scheme)
            keys = scheme.keys(secret)
            scheme.verify(keys, outgoing.request(), NOW)
            for request in (*moved(scheme, outgoing), *moved_over_three(scheme, outgoing)):
                with pytest.raises(SignatureRejected):
                    scheme.verify(keys, request, NOW)


STANDARD: Final = PRESETS["standard-webhooks"].scheme("v1")
WHSEC: Final = "whsec_" + "QUJD" * 8


def webhook(id: str, body: bytes = b"{}") -> OutgoingRequest:
    return OutgoingRequest({"webhook-id": id}, body)


def test_an_id_may_contain_dots_if_it_has_one_reading(subtests: pytest.Subtests) -> None:
    for event_id in ("msg_1", "a.b", ".", "1760000000", "a.176000000", "a..b.176.x"):
        with subtests.test(event_id=event_id):
            outgoing = webhook(event_id)
            STANDARD.sign(WHSEC, outgoing, NOW)
            STANDARD.verify(STANDARD.keys(WHSEC), outgoing.request(), NOW)


def test_an_id_that_ends_like_a_time_has_two_readings() -> None:
    with pytest.raises(ConfigurationError, match="contains what separates it"):
        STANDARD.sign(WHSEC, webhook("a.1760000000"), NOW)


def test_the_rejection_names_the_value() -> None:
    scheme = Signature(at="header:X-Sig", content="{header:X-Id}:{header:X-Topic}:{body}")
    headers = Headers([(b"x-sig", b"00"), (b"x-id", b"a:b"), (b"x-topic", b"c")])
    with pytest.raises(SignatureRejected) as caught:
        scheme.verify(scheme.keys(SECRET), Request(headers, b""), NOW)
    assert caught.value.cause is RejectionCause.MALFORMED
    assert caught.value.check.startswith("header:X-Id contains what separates it")


def test_a_value_after_the_body_may_not_contain_its_separator() -> None:
    scheme = Signature(at="header:X-Sig", content="{body}.{header:X-Id}")
    outgoing = OutgoingRequest({"X-Id": "7"}, b"a.b")
    scheme.sign(SECRET, outgoing, NOW)
    scheme.verify(scheme.keys(SECRET), outgoing.request(), NOW)
    request = replaced(scheme, outgoing, {"body": b"a", "header:X-Id": b"b.7"})
    with pytest.raises(SignatureRejected, match="was not accepted"):
        scheme.verify(scheme.keys(SECRET), request, NOW)


ISO: Final = "2025-10-09T08:53:20"


CONTINUED_TIMES: list[tuple[TimeFormat, str, str, str]] = [
    ("iso_zone_optional", ".", ISO, ".5"),
    ("iso_zone_optional", "5", f"{ISO}.1", "5"),
    ("iso_zone_optional", "Z", ISO, "Z"),
    ("iso_zone_optional", "+", ISO, "+02:00"),
    ("iso_zone_optional", "-", ISO, "-02:00"),
    ("seconds_or_milliseconds", "0", "1760000000", "000"),
]


def test_text_that_may_continue_a_time_has_one_reading(subtests: pytest.Subtests) -> None:
    for time_format, between, time, more in CONTINUED_TIMES:
        with subtests.test(time_format=time_format, between=between):
            content = f"{time}{more}{between}x"
            scheme = Signature(
                at="header:X-Sig",
                content=f"{{timestamp}}{between}{{body}}",
                timestamp="header:X-Time",
                time_format=time_format,
            )
            signature = hmac.digest(SECRET.encode(), content.encode(), "sha256").hex()
            accepted = []
            for sent, body in [(time + more, "x"), (time, content[len(time + between) :])]:
                assert sent + between + body == content
                headers = Headers([(b"x-sig", signature.encode()), (b"x-time", sent.encode())])
                with suppress(SignatureRejected):
                    scheme.verify(scheme.keys(SECRET), Request(headers, body.encode()), NOW)
                    accepted.append(sent)
            assert len(accepted) < 2


def test_a_value_ends_before_a_hash_of_the_body() -> None:
    scheme = Signature(at="header:X-Sig", content="{header:X-Id}.{body:md5}.{header:X-Topic}")
    outgoing = OutgoingRequest({"X-Id": "a.b", "X-Topic": "c.d"}, b"{}")
    scheme.sign(SECRET, outgoing, NOW)
    scheme.verify(scheme.keys(SECRET), outgoing.request(), NOW)


UNDEFINED_BOUNDARIES: list[tuple[str, TimeFormat, str, str]] = [
    ("{header:X-Id}{body}", "seconds", "header:X-Id", "body"),
    ("{body}{header:X-Id}", "seconds", "body", "header:X-Id"),
    ("{header:X-Id}{timestamp}{body}", "seconds", "header:X-Id", "body"),
    ("{timestamp}{body}{header:X-Id}", "iso", "body", "header:X-Id"),
    ("{timestamp}{body}", "iso_zone_optional", "timestamp", "body"),
    ("{timestamp}{body}", "seconds_or_milliseconds", "timestamp", "body"),
    ("{json:a}{json:b}", "seconds", "json:a", "json:b"),
]


def test_a_template_without_a_defined_boundary_is_refused(subtests: pytest.Subtests) -> None:
    for content, time_format, first, second in UNDEFINED_BOUNDARIES:
        with subtests.test(content=content, time_format=time_format):
            time = "header:X-Time" if "timestamp" in content else None
            message = re.escape(f"where {{{first}}} ends and {{{second}}} begins")
            with pytest.raises(ConfigurationError, match=message):
                Signature(
                    at="header:X-Sig", content=content, timestamp=time, time_format=time_format
                )
