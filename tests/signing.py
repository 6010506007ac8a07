"""How senders sign and what is genuine, said in other words than the code's."""

import base64
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from onceward.sources.schemes import Hmac, Signature

SECRET: Final = "whsec_a_secret_to_everybody"
KEY: Final = SECRET.encode()
NOW: Final = 1_760_000_000
URL: Final = "https://shop.example/webhooks/source?a=1&data.id=7"


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


def name_of(place: str) -> bytes:
    return place.removeprefix("header:").lower().encode()


def spelt(scheme: Signature, now: float = NOW) -> bytes:
    """A time as the scheme's sender writes it."""
    if scheme.time_format == "iso":
        return datetime.fromtimestamp(now, UTC).isoformat().encode()
    return b"%d" % (now * 1000 if scheme.time_format == "milliseconds" else now)


def read(scheme: Signature, timestamp: bytes) -> float:
    """The time that a timestamp says; NaN where it says none."""
    digits = {"seconds": 12, "milliseconds": 15}.get(scheme.time_format)
    if digits is None:
        try:
            return datetime.fromisoformat(timestamp.decode("ascii")).timestamp()
        except ValueError:
            return float("nan")
    if not re.fullmatch(rb"[0-9]{1,%d}" % digits, timestamp):
        return float("nan")
    return int(timestamp) / (1000 if scheme.time_format == "milliseconds" else 1)


def signature(
    scheme: Signature, headers: dict[bytes, bytes], timestamp: bytes, body: bytes, key: bytes
) -> bytes | None:
    """The digest that the scheme's sender makes; None where something is missing to make it."""
    content = b""
    for piece in re.split(r"(\{[^}]*\})", scheme.content):
        name = piece[1:-1] if piece.startswith("{") else ""
        known = {
            "": piece.encode(),
            "body": body,
            "timestamp": timestamp,
            "url": URL.encode(),
            "method": b"POST",
        }
        found = headers.get(name_of(name)) if name.startswith("header:") else known[name]
        if found is None:
            return None
        content += found
    assert isinstance(scheme.algorithm, Hmac)
    return hmac.new(key, content, scheme.algorithm.digest).digest()


def encoded(scheme: Signature, digest: bytes) -> bytes:
    spell: Callable[[bytes], bytes] = {
        "hex": lambda it: it.hex().encode(),
        "base64": base64.b64encode,
        "base64url": lambda it: base64.urlsafe_b64encode(it).rstrip(b"="),
    }[scheme.encoding]
    return spell(digest)


def decoded(scheme: Signature, text: bytes) -> bytes | None:
    """What a signature stands for, if it is spelt as it must be."""
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
    timestamp = spelt(scheme) if timestamp is None else timestamp
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
    """Whether a request with one signature header says what the sender signed, and in time."""
    headers = dict(sent.headers)
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
            else [it for it in [headers.get(name.lower().encode())] if it is not None]
        )
        if len(times) != 1:
            return False
        (timestamp,) = times
    if scheme.tolerance_seconds is not None:
        off = sent.now - read(scheme, timestamp)
        if not -scheme.tolerance_seconds <= off <= scheme.tolerance_seconds:
            return False
    expected = {signature(scheme, headers, timestamp, sent.body, key) for key in sent.keys}
    tried = {decoded(scheme, claim) for claim in claims[:10]}
    return bool((tried & expected) - {None})
