"""An incoming request: headers, body, method and public URL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from onceward.errors import ConfigurationError, RepeatedHeader
from onceward.sources.forms import form_fields, urlencoded_fields
from onceward.sources.json_text import decode_json

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
MAX_PARSED_BYTES: Final = 1024 * 1024
"""Larger bodies are not parsed, because parsing may happen before the request is verified."""
MAX_CONTAINERS: Final = 100_000
"""JSON with more lists and objects is not parsed either: each costs as much as many bytes."""


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
        """The bytes that ``body:sha256`` hashes: the body, or what is signed of it."""
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
        return urlencoded_fields(self._split_url.query) or []

    @property
    def form(self) -> list[tuple[str, str]]:
        """The fields of a form body, URL-encoded or multipart; none if it exceeds the limits."""
        return self._form_fields or []

    @property
    def exceeds_form_limits(self) -> bool:
        """Whether the body is too large or too expensive to be read as a form."""
        return self._form_fields is None

    @cached_property
    def _form_fields(self) -> list[tuple[str, str]] | None:
        if len(self.body) > MAX_PARSED_BYTES:
            return None
        return form_fields(self.body)

    @cached_property
    def document(self) -> Any:
        """The decoded JSON body; None if it is not JSON or exceeds a limit."""
        body = self.body
        if len(body) > MAX_PARSED_BYTES or body.count(b"[") + body.count(b"{") > MAX_CONTAINERS:
            return None
        try:
            return decode_json(body)
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
