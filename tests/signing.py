"""A second, independent implementation of signing and verifying, to compare with the first."""

import base64
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isnan
from typing import Final

from onceward.sources.schemes import Hmac, Signature

SECRET: Final = "whsec_a_secret_to_everybody"
KEY: Final = SECRET.encode()
NOW: Final = 1_760_000_000
URL: Final = "https://shop.example/webhooks/source?a=1&data.id=7"


@dataclass(frozen=True)
class Sent:
    """A signed request, with the time and the keys that verify it."""

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


def name_of(selector: str) -> bytes:
    return selector.removeprefix("header:").lower().encode()


def format_time(scheme: Signature, now: float = NOW) -> bytes:
    """Format a time as the scheme does."""
    if scheme.time_format.startswith("iso"):
        return datetime.fromtimestamp(now, UTC).isoformat().encode()
    return b"%d" % (now * 1000 if scheme.time_format == "milliseconds" else now)


def parse_time(scheme: Signature, timestamp: bytes) -> float:
    """Parse a timestamp; return NaN if it is invalid."""
    digits = {"seconds": 10, "milliseconds": 13}.get(scheme.time_format)
    if digits is None:
        text = timestamp.decode("latin-1")
        zone = "" if scheme.time_format == "iso" else "?"
        form = rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{{1,9}})?(Z|[+-]\d\d:\d\d){zone}"
        try:
            time = datetime.fromisoformat(text) if re.fullmatch(form, text, re.ASCII) else None
        except ValueError:
            time = None
        if time is None:
            return float("nan")
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not re.fullmatch(rb"[0-9]{%d}" % digits, timestamp):
        return float("nan")
    return int(timestamp) / (1000 if scheme.time_format == "milliseconds" else 1)


def signature(
    scheme: Signature, headers: dict[bytes, bytes], timestamp: bytes, body: bytes, key: bytes
) -> bytes | None:
    """Return the digest over the signed content, or None if a signed header is missing."""
    content = b""
    for piece in re.split(r"(\{[^}]*\})", scheme.content):
        name = piece[1:-1] if piece.startswith("{") else ""
        values = {
            "": piece.encode(),
            "body": body,
            "timestamp": timestamp,
            "url": URL.encode(),
            "method": b"POST",
        }
        value = headers.get(name_of(name)) if name.startswith("header:") else values[name]
        if value is None:
            return None
        content += value
    assert isinstance(scheme.algorithm, Hmac)
    return hmac.new(key, content, scheme.algorithm.digest).digest()


def encoded(scheme: Signature, digest: bytes) -> bytes:
    encode: Callable[[bytes], bytes] = {
        "hex": lambda raw: raw.hex().encode(),
        "base64": base64.b64encode,
        "base64url": lambda raw: base64.urlsafe_b64encode(raw).rstrip(b"="),
    }[scheme.encoding]
    return encode(digest)


def decoded(scheme: Signature, text: bytes) -> bytes | None:
    """Decode a signature, or return None if it is badly encoded."""
    if scheme.encoding == "hex":
        return bytes.fromhex(text.decode()) if re.fullmatch(rb"([0-9a-fA-F]{2})*", text) else None
    plain = text.replace(b"-", b"+").replace(b"_", b"/") if scheme.encoding != "base64" else text
    if scheme.encoding == "base64url":
        plain += b"=" * (-len(plain) % 4)
    try:
        return base64.b64decode(plain, validate=True)
    except ValueError:
        return None


def genuine(
    scheme: Signature, body: bytes, timestamp: bytes | None = None, key: bytes = KEY
) -> Sent:
    timestamp = format_time(scheme) if timestamp is None else timestamp
    others = {name_of(name): b"an-id" for name in re.findall(r"\{(header:[^}]*)\}", scheme.content)}
    if scheme.timestamp is not None and scheme.timestamp.startswith("header:"):
        others[name_of(scheme.timestamp)] = timestamp
    digest = signature(scheme, others, timestamp, body, key)
    assert digest is not None
    value = scheme.prefix.encode() + encoded(scheme, digest)
    if scheme.timestamp is not None and scheme.timestamp.startswith("list:"):
        assert scheme.separator is not None
        time = scheme.timestamp.removeprefix("list:").encode() + timestamp
        value = time + scheme.separator.encode() + value
    return Sent(((name_of(scheme.at), value), *others.items()), body)


def is_genuine(scheme: Signature, sent: Sent) -> bool:
    """Return whether a request has a valid signature within the tolerance."""
    headers = {name: value.strip(b" \t") for name, value in sent.headers}
    value = headers.get(name_of(scheme.at))
    if value is None:
        return False
    items = value.split(scheme.separator.encode(), 64) if scheme.separator else [value]
    prefix = scheme.prefix.encode()
    claims = [item[len(prefix) :] for item in items if item.startswith(prefix)]
    timestamp = b""
    if scheme.timestamp is not None:
        kind, _, name = scheme.timestamp.partition(":")
        times = (
            [item[len(name) :] for item in items if item.startswith(name.encode())]
            if kind == "list"
            else [text for text in [headers.get(name.lower().encode())] if text is not None]
        )
        if len(times) != 1:
            return False
        (timestamp,) = times
        time = parse_time(scheme, timestamp)
        if isnan(time):
            return False
        tolerance = scheme.tolerance_seconds
        if tolerance is not None and not -tolerance <= sent.now - time <= tolerance:
            return False
    expected = {signature(scheme, headers, timestamp, sent.body, key) for key in sent.keys}
    tried = {decoded(scheme, claim) for claim in claims[:10]}
    return bool((tried & expected) - {None})
