"""Whether a request comes from who it says: schemes as data, and one function to apply them.

Nothing here reads a clock or raises anything but `SignatureRejected`, and `RequestRefused` for a
header that stands in the request twice.
"""

from __future__ import annotations

import binascii
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Final, Literal, Protocol

from onceward.errors import ConfigurationError, RequestRefused, SignatureRejected

SIGNATURES_TRIED: Final = 10
PAIRS_READ: Final = 64
TIMESTAMP_DIGITS: Final = 12

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")


class Headers:
    """A request's headers, read only. Names are asked for in lower case, as ASGI gives them."""

    __slots__ = ("_has_repeats", "_pairs", "_values")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._pairs = tuple(raw)
        self._values = dict(self._pairs)
        self._has_repeats = len(self._values) != len(self._pairs)

    def get(self, name: bytes) -> bytes | None:
        """The header's value. Raises RequestRefused where it occurs more than once."""
        if self._has_repeats and len(self._all(name)) > 1:
            message = f"The header {name.decode('latin-1')} occurs more than once."
            raise RequestRefused(400, "repeated_header", message)
        return self._values.get(name)

    def joined(self, name: bytes) -> bytes | None:
        """The header's value, or its values with commas between, for what decides nothing."""
        if self._has_repeats and name in self._values:
            return b", ".join(self._all(name))
        return self._values.get(name)

    def _all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self._pairs if key == name]


def is_header_name(name: str) -> bool:
    """Whether a header can have this name."""
    return _HEADER_NAME.fullmatch(name) is not None


def header_key(name: str) -> bytes:
    """A header's name as `Headers` knows it. Raises ConfigurationError where it cannot be one."""
    if not is_header_name(name):
        raise ConfigurationError(f"{name!r} is not the name of a header")
    return name.lower().encode()


class Part(Enum):
    """What a signature is made over, beside fixed bytes."""

    BODY = auto()
    TIMESTAMP = auto()


_BODY: Final = Part.BODY
_TIMESTAMP: Final = Part.TIMESTAMP
_BODY_ONLY: Final = (_BODY,)


@dataclass(frozen=True, slots=True)
class Plain:
    """The header is one signature, after a prefix that names the algorithm."""

    prefix: bytes = b""

    @property
    def shape(self) -> str:
        """What is looked for, for the operator."""
        return f"{self.prefix.decode('latin-1')}<signature>"

    def read(self, header: bytes) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """The timestamps and the signatures in the header."""
        if not header.startswith(self.prefix):
            return (), ()
        return (), (header[len(self.prefix) :],)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The header is a list such as ``t=…,v1=…,v1=…``; other keys are passed over."""

    signature: bytes
    timestamp: bytes

    @property
    def shape(self) -> str:
        """What is looked for, for the operator."""
        return f"{self.signature.decode('latin-1')}=<signature>"

    def read(self, header: bytes) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """The timestamps and the signatures in the header."""
        timestamps: list[bytes] = []
        signatures: list[bytes] = []
        for pair in header.split(b",", PAIRS_READ):
            key, _, value = pair.partition(b"=")
            if key == self.signature:
                signatures.append(value)
            elif key == self.timestamp:
                timestamps.append(value)
        return timestamps, signatures


def hex_bytes(text: bytes) -> bytes | None:
    """Decode hexadecimal digits; None for anything else, white space included."""
    try:
        return binascii.unhexlify(text)
    except binascii.Error:
        return None


class Scheme(Protocol):
    """How a sender proves that a request is its own."""

    @property
    def tolerance_seconds(self) -> int | None:
        """How far off the signed time may be; None where no time is signed."""

    def verify(self, secrets: Sequence[bytes], headers: Headers, body: bytes, now: float) -> None:
        """Return for a genuine request; raise SignatureRejected for any other."""


@dataclass(frozen=True, slots=True)
class HmacScheme:
    """A shared secret, and a keyed digest of the body, often with a timestamp."""

    header: str
    layout: Plain | Pairs = field(default_factory=Plain)
    signed: tuple[Part | bytes, ...] = (Part.BODY,)
    digest: Literal["sha1", "sha256", "sha512"] = "sha256"
    decode: Callable[[bytes], bytes | None] = hex_bytes
    tolerance_seconds: int | None = None
    _key: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if (Part.TIMESTAMP in self.signed) != (self.tolerance_seconds is not None):
            raise ConfigurationError("a tolerance and a signed timestamp go together")
        object.__setattr__(self, "_key", header_key(self.header))

    def verify(self, secrets: Sequence[bytes], headers: Headers, body: bytes, now: float) -> None:
        """Return when a signature in the header was made with one of the secrets."""
        header = headers.get(self._key)
        if header is None:
            raise SignatureRejected(f"no {self.header} header")
        timestamps, claims = self.layout.read(header)
        timestamp = b""
        if self.tolerance_seconds is not None:
            timestamp = _fresh(timestamps, now, self.tolerance_seconds)
        claimed = self._decoded(claims)
        content = body if self.signed == _BODY_ONLY else self._content(timestamp, body)
        for secret in secrets:
            if not secret:  # anyone can sign with an empty key
                continue
            keyed = _keyed(secret, self.digest).copy()
            keyed.update(content)
            expected = keyed.digest()
            for signature in claimed:
                if hmac.compare_digest(expected, signature):
                    return
        raise SignatureRejected(f"no signature matched any of {len(secrets)} secrets")

    def _decoded(self, claims: Sequence[bytes]) -> list[bytes]:
        if not claims:
            raise SignatureRejected(f"no {self.layout.shape} in the {self.header} header")
        found = []
        for claim in claims[:SIGNATURES_TRIED]:
            signature = self.decode(claim)
            if signature is not None:
                found.append(signature)
        if not found:
            raise SignatureRejected(f"the signature in the {self.header} header is badly encoded")
        return found

    def _content(self, timestamp: bytes, body: bytes) -> bytes:
        return b"".join(
            [
                body if part is _BODY else timestamp if part is _TIMESTAMP else part
                for part in self.signed
            ]
        )


@lru_cache(maxsize=256)
def _keyed(secret: bytes, digest: str) -> hmac.HMAC:
    """A digest that has begun with the secret; to begin anew each time takes twice as long."""
    return hmac.new(secret, digestmod=digest)


def verify(
    scheme: Scheme, secrets: Sequence[bytes], headers: Headers, body: bytes, now: float
) -> None:
    """Return when the request is genuine under one of the secrets.

    Raises SignatureRejected, whose `check` is for the operator and never holds a signature or a
    secret; RequestRefused where a header that decides occurs twice; and nothing else.
    """
    scheme.verify(secrets, headers, body, now)


def _fresh(timestamps: Sequence[bytes], now: float, tolerance_seconds: int) -> bytes:
    """The one timestamp, when it is near enough to now, on either side."""
    if len(timestamps) != 1:
        raise SignatureRejected(f"{len(timestamps) or 'no'} timestamps, one is needed")
    timestamp = timestamps[0]
    if len(timestamp) > TIMESTAMP_DIGITS or not timestamp.isdigit():
        raise SignatureRejected("the timestamp is not a plain number of seconds")
    seconds_off = abs(now - int(timestamp))
    if not seconds_off <= tolerance_seconds:
        off = f"{round(seconds_off, 1):.12g}"
        raise SignatureRejected(f"timestamp {off} s off, tolerance {tolerance_seconds} s")
    return timestamp
