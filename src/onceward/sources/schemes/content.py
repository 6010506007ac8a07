"""Templates of signed content, such as ``{timestamp}.{body}``."""

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
from onceward.sources.schemes.boundaries import Boundaries, find_boundaries
from onceward.sources.schemes.coverage import (
    BodyCoverage,
    Coverage,
    UrlCoverage,
    selector_key,
)
from onceward.sources.schemes.times import TIME_STYLES, TimeStyle
from onceward.sources.selectors import Selector, parse_selectors, read_first

_PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")

PlaceholderReader = Callable[[Request, bytes], bytes]


def _read_url(request: Request, _: bytes) -> bytes:
    return request.url.encode(errors="surrogatepass")


def _read_md5(request: Request, _: bytes) -> bytes:
    return base64.b64encode(hashlib.md5(request.body, usedforsecurity=False).digest())


_READERS: Final[dict[str, PlaceholderReader]] = {
    "body": lambda request, _: request.body,
    "timestamp": lambda _, timestamp: timestamp,
    "method": lambda request, _: request.method.encode(),
    "url": _read_url,
    "target": lambda request, _: request.target.encode(errors="surrogatepass"),
    "body:crc32": lambda request, _: str(binascii.crc32(request.body)).encode(),
    "body:md5": _read_md5,
}
_URL_COVERAGE: Final = {"url": UrlCoverage.WHOLE, "target": UrlCoverage.TARGET}
_BODY_COVERAGE: Final = {
    "body": BodyCoverage.BYTES,
    "body:md5": BodyCoverage.BYTES,
    "body:crc32": BodyCoverage.CHECKSUM,
}


@dataclass(frozen=True, slots=True)
class ContentTemplate:
    """Text with placeholders in braces. Raises ConfigurationError if it is not valid.

    A placeholder is one of the built-in names or a selector.
    """

    text: str
    time_style: TimeStyle = TIME_STYLES["seconds"]
    placeholders: tuple[str, ...] = field(init=False, repr=False)
    _boundaries: Boundaries = field(init=False, repr=False, compare=False)
    _parts: tuple[bytes | PlaceholderReader, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pieces = _PLACEHOLDER.split(self.text)  # every second piece is a placeholder
        if any("{" in piece or "}" in piece for piece in pieces[::2]):
            raise ConfigurationError(f"the content {self.text!r} has an unmatched brace")
        if len(pieces) == 1:
            raise ConfigurationError(f"the content {self.text!r} has no placeholder")
        parts = [
            _placeholder_reader(piece) if position % 2 else piece.encode()
            for position, piece in enumerate(pieces)
        ]
        boundaries = find_boundaries(pieces, self.time_style)
        if not boundaries.checked:  # no part is addressed by its position
            parts = [part for part in parts if part]
        object.__setattr__(self, "placeholders", tuple(pieces[1::2]))
        object.__setattr__(self, "_boundaries", boundaries)
        object.__setattr__(self, "_parts", tuple(parts))

    @property
    def has_url(self) -> bool:
        """Whether the public URL, or a part of it, is signed."""
        return any(name in _URL_COVERAGE or name.startswith("query:") for name in self.placeholders)

    @property
    def coverage(self) -> Coverage:
        """The parts of a request that a signature over this content covers."""
        names = set(self.placeholders)
        values = tuple(_value_key(name) for name in self.placeholders if name not in _READERS)
        body = next((kind for name, kind in _BODY_COVERAGE.items() if name in names), None)
        url = next((kind for name, kind in _URL_COVERAGE.items() if name in names), None)
        in_body = any(value.startswith(("json:", "form:")) for value in values)
        return Coverage(
            body or (BodyCoverage.FIELDS if in_body else BodyCoverage.NOTHING),
            url or UrlCoverage.NOTHING,
            values,
            has_time="timestamp" in names,
        )

    @property
    def separator_safety(self) -> str:
        """Why the signed bytes cannot be cut into other values."""
        return self._boundaries.explanation

    def render(self, request: Request, timestamp: bytes = b"") -> bytes:
        """Return the signed bytes.

        Raises SignatureRejected if a selected value is missing, or if the bytes could be cut into
        other values.
        """
        parts = self._values(request, timestamp)
        content = b"".join(parts)
        self._boundaries.check(parts, content)
        return content

    def render_values(self, request: Request) -> bytes:
        """Return the signed bytes of a verified request without its time.

        Raises SignatureRejected if a selected value is missing.
        """
        return b"".join(self._values(request, b""))

    def _values(self, request: Request, timestamp: bytes) -> list[bytes]:
        return [
            part if isinstance(part, bytes) else part(request, timestamp) for part in self._parts
        ]


def _value_key(placeholder: str) -> str:
    return "|".join(selector_key(selector) for selector in parse_selectors(placeholder))


def _placeholder_reader(name: str) -> PlaceholderReader:
    if name in _READERS:
        return _READERS[name]
    if ":" not in name:
        builtin = ", ".join(_READERS)
        raise ConfigurationError(f"unknown placeholder {{{name}}}; use {builtin} or a selector")
    return partial(_read_selected, parse_selectors(name))


def _read_selected(selectors: tuple[Selector, ...], request: Request, _: bytes) -> bytes:
    value = read_first(selectors, request)
    if value is None:
        raise SignatureRejected(
            f"no {selectors[0]}, which the signature covers", RejectionCause.MISSING
        )
    return value
