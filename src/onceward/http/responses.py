"""Responses: JSON by default, with the same headers everywhere."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from onceward.http.errors import error_fields

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

NO_CONTENT: Final = 204
_COMMON_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_CLOSE: Final = (b"connection", b"close")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_encode = msgspec.json.Encoder().encode

Header = tuple[bytes, bytes]


class Response(msgspec.Struct, frozen=True, gc=False):
    """A status, a body (JSON unless `content_type` differs) and extra headers."""

    status: int
    body: bytes
    headers: Sequence[Header] = ()
    content_type: bytes = b"application/json"

    @property
    def all_headers(self) -> list[Header]:
        """All headers, in the order they are sent."""
        return [*_base_headers(self.status, self.content_type, len(self.body)), *self.headers]

    @property
    def closes_connection(self) -> bool:
        """Whether the connection closes after this response."""
        return _CLOSE in self.headers

    def to_bytes(self, default_headers: Iterable[Header], *, keep_alive: bool) -> bytes:
        """Return the response as HTTP/1.1 bytes, with the server's default headers."""
        extra = *default_headers, *self.headers
        if not (keep_alive or self.closes_connection):
            extra = *extra, _CLOSE
        return _head(self.status, self.content_type, len(self.body), extra) + self.body

    async def send(self, send: Send) -> None:
        """Send the response over ASGI."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": self.all_headers,
            }
        )
        await send({"type": "http.response.body", "body": self.body})


Respond = Callable[[Response], None]
"""A callback that sends the response to one request."""


@lru_cache(maxsize=1_000)
def _base_headers(status: int, content_type: bytes, length: int) -> tuple[Header, ...]:
    if status == NO_CONTENT:
        return _COMMON_HEADERS
    content = (b"content-type", content_type), (b"content-length", str(length).encode())
    return *content, *_COMMON_HEADERS


@lru_cache(maxsize=1_000)
def _head(status: int, content_type: bytes, length: int, extra: tuple[Header, ...]) -> bytes:
    """Return the status line and headers. Cached: most responses share a few heads."""
    return encode_head(status, (*_base_headers(status, content_type, length), *extra))


def encode_head(status: int, headers: Sequence[Header]) -> bytes:
    """Return the status line and headers of a response. Raises ValueError for a line break."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    if any(_CONTROL.search(value) for _, value in headers):
        raise ValueError("a header cannot contain control characters")
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, phrase.encode(), lines)


def json_response(status: int, content: object) -> Response:
    """Return a JSON response. `content` is anything that msgspec can encode."""
    return Response(status, _encode(content))


INTERNAL_ERROR: Final = json_response(
    500, {"error": "internal", "message": "Internal error. The log has the details."}
)


def error_response(error: Exception) -> Response:
    """Return the response to a mapped error."""
    status, code, message, extra = error_fields(error)
    headers = [(name.encode(), value.encode()) for name, value in extra]
    return Response(status, _encode({"error": code, "message": message}), headers)
