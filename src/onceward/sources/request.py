"""An incoming request: headers, body, method and public URL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from onceward.errors import ConfigurationError, RepeatedHeader

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_BOUNDARY: Final = re.compile(rb"(?:\r\n)?--([^\r\n]{1,70})\r\n")
"""The beginning of a multipart form. Its Content-Type is not asked: few senders sign the header,
and it must not decide how signed bytes are read.
"""
_FIELD_NAME: Final = re.compile(
    rb'^content-disposition:.*?\bname="([^"]*)"', re.IGNORECASE | re.MULTILINE
)
MAX_FIELDS: Final = 1_000
MAX_PARSED_BYTES: Final = 1024 * 1024
"""Larger bodies are not parsed, because parsing may happen before the request is verified."""


class Headers:
    """The headers of a request, read-only. Names are lower-case, as in ASGI."""

    __slots__ = ("_has_repeats", "_values", "pairs")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.pairs = tuple(raw)
        self._values = dict(self.pairs)
        self._has_repeats = len(self._values) != len(self.pairs)

    def get(self, name: bytes) -> bytes | None:
        """Return the value of a header, or None. Raises RepeatedHeader if it occurs twice.

        Blanks around a value are no part of it, and some servers keep them.
        """
        if self._has_repeats and len(self._all(name)) > 1:
            message = f"The header {name.decode('latin-1')} occurs more than once."
            raise RepeatedHeader(message)
        value = self._values.get(name)
        return None if value is None else value.strip(b" \t")

    def joined(self, name: bytes) -> bytes | None:
        """Return the values of a header joined by commas, or None.

        Use it where a repeated header is harmless or expected; `get` rejects one.
        """
        if self._has_repeats and name in self._values:
            return b", ".join(self._all(name))
        return self._values.get(name)

    def _all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.pairs if key == name]


class Request:
    """A request to verify. Only some senders sign the method and the public URL."""

    __slots__ = ("__dict__", "body", "content", "headers", "method", "url")

    def __init__(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> None:
        self.headers = headers
        self.body = body
        self.content = body
        """The bytes from which a hash is taken; see `Scheme.event_content`."""
        self.method = method
        self.url = url

    @cached_property
    def _split_url(self) -> SplitResult:
        try:
            return urlsplit(self.url)
        except ValueError:  # the Host header is not a host
            return urlsplit("")

    @cached_property
    def target(self) -> str:
        """The path and query of the URL."""
        parts = self._split_url
        return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"

    @cached_property
    def query(self) -> list[tuple[str, str]]:
        """The query parameters of the URL."""
        return _urlencoded_fields(self._split_url.query) or []

    @property
    def form(self) -> list[tuple[str, str]]:
        """The fields of a form body, URL-encoded or multipart; none if it exceeds the limits."""
        return self._form_fields or []

    @property
    def exceeds_form_limits(self) -> bool:
        """Whether the body is too large to be read as a form, or has too many fields."""
        return self._form_fields is None

    @cached_property
    def _form_fields(self) -> list[tuple[str, str]] | None:
        if len(self.body) > MAX_PARSED_BYTES:
            return None
        boundary = _BOUNDARY.match(self.body)
        if boundary is None:
            return _urlencoded_fields(self.body.decode("latin-1"))
        return _multipart_fields(self.body, boundary[1])

    @cached_property
    def document(self) -> Any:
        """The decoded JSON body; None if it is not JSON or too large."""
        if len(self.body) > MAX_PARSED_BYTES:
            return None
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


def _multipart_fields(body: bytes, boundary: bytes) -> list[tuple[str, str]] | None:
    """Return the fields of a multipart form without its files; None if there are too many."""
    _, *parts = body.split(b"--" + boundary, MAX_FIELDS + 2)
    if len(parts) > MAX_FIELDS + 1:  # the last part is the end mark
        return None
    fields = []
    for part in parts:
        head, blank, value = part.partition(b"\r\n\r\n")
        name = _FIELD_NAME.search(head)
        if blank and name is not None and b"filename=" not in head:
            text = value.removesuffix(b"\r\n").decode(errors="surrogateescape")
            fields.append((name[1].decode(errors="surrogateescape"), text))
    return fields


def _urlencoded_fields(text: str) -> list[tuple[str, str]] | None:
    """Return the fields of URL-encoded text; None if there are too many."""
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        return None


def is_header_name(name: str) -> bool:
    """Return whether a header can have this name."""
    return _HEADER_NAME.fullmatch(name) is not None


def header_key(name: str) -> bytes:
    """Return the name under which `Headers` stores a header. Raises ConfigurationError."""
    if not is_header_name(name):
        raise ConfigurationError(f"{name!r} is not a valid header name")
    return name.lower().encode()
