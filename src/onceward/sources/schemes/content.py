"""What a signature is made over, as a text with places in braces: ``{timestamp}.{body}``."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.request import Request
from onceward.sources.selectors import Selector, bytes_at, parse_selectors

_BRACES: Final = re.compile(r"\{([^{}]+)\}")

Read = Callable[[Request, bytes], bytes]


def _url(request: Request, _: bytes) -> bytes:
    return request.url.encode(errors="surrogatepass")


def _md5(request: Request, _: bytes) -> bytes:
    return base64.b64encode(hashlib.md5(request.body, usedforsecurity=False).digest())


_KNOWN: Final[dict[str, Read]] = {
    "body": lambda request, _: request.body,
    "timestamp": lambda _, timestamp: timestamp,
    "method": lambda request, _: request.method.encode(),
    "url": _url,
    "target": lambda request, _: request.target.encode(errors="surrogatepass"),
    "body:crc32": lambda request, _: str(binascii.crc32(request.body)).encode(),
    "body:md5": _md5,
}
_OF_URL: Final = frozenset({"url", "target"})
_OF_BODY: Final = frozenset({"body", "body:crc32", "body:md5"})


@dataclass(frozen=True, slots=True)
class Content:
    """A text with places in braces. Raises ConfigurationError for one that is none."""

    text: str
    names: tuple[str, ...] = field(init=False, repr=False)
    _parts: tuple[bytes | Read, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pieces = _BRACES.split(self.text)  # every second one was in braces
        if any("{" in piece or "}" in piece for piece in pieces[::2]):
            raise ConfigurationError(f"the content {self.text!r} has a brace that is not closed")
        if len(pieces) == 1:
            raise ConfigurationError(f"the content {self.text!r} has nothing of the request in it")
        parts = [_read(piece) if place else piece.encode() for place, piece in _marked(pieces)]
        object.__setattr__(self, "names", tuple(pieces[1::2]))
        object.__setattr__(self, "_parts", tuple(part for part in parts if part))

    @property
    def has_url(self) -> bool:
        """Whether the public URL is in it."""
        return any(name in _OF_URL or name.startswith("query:") for name in self.names)

    @property
    def has_body(self) -> bool:
        """Whether the whole body is in it, or a digest of it."""
        return any(name in _OF_BODY for name in self.names)

    def has_header(self, name: str) -> bool:
        """Whether a header of this name is in it."""
        places = [place for text in self.names for place in text.lower().split("|")]
        return f"header:{name.lower()}" in places

    def of(self, request: Request, timestamp: bytes = b"") -> bytes:
        """The bytes that are signed. Raises SignatureRejected where a place is empty."""
        return b"".join(
            [part if isinstance(part, bytes) else part(request, timestamp) for part in self._parts]
        )


def _marked(pieces: list[str]) -> list[tuple[bool, str]]:
    return [(number % 2 == 1, piece) for number, piece in enumerate(pieces)]


def _read(name: str) -> Read:
    if name in _KNOWN:
        return _KNOWN[name]
    if ":" not in name:
        known = ", ".join(_KNOWN)
        raise ConfigurationError(f"{{{name}}} cannot be signed; there are {known}, and places")
    return partial(_at, parse_selectors(name))


def _at(places: tuple[Selector, ...], request: Request, _: bytes) -> bytes:
    found = bytes_at(places, request)
    if found is None:
        raise SignatureRejected(f"no {places[0]}, which is signed", RejectionCause.MISSING)
    return found
