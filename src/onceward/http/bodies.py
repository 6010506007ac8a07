"""Headers and bodies, read within limits on size, time and memory."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from onceward.errors import OncewardError, Overloaded, RequestRefused
from onceward.http.errors import CLOSE, HttpError
from onceward.http.responses import Message, Receive, Scope
from onceward.runtime.deadlines import Deadlines
from onceward.settings import Settings
from onceward.sources.request import Headers

_MAX_LENGTH_DIGITS: Final = 18
_NO_BYTE: Final = (
    "No byte of the body arrived: if a middleware of your app reads the body, it must pass it on."
)
SMALL_BODY_BYTES: Final = 64 * 1024
"""Larger bodies may use only three quarters of the memory: the rest is for small ones."""


class Disconnected(OncewardError):
    """The sender disconnected before its body was complete. Nothing was recorded."""


def require_json(headers: Headers) -> None:
    """Raise HttpError (415) unless the content type is JSON, which no HTML form can send."""
    kind = (headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        message = "Send JSON with the header Content-Type: application/json."
        raise HttpError(415, "not_json", message)


def bounded_headers(scope: Scope, settings: Settings) -> Headers:
    """Return the headers of a request. Raises HttpError (431) if they exceed the limits."""
    raw = scope["headers"]
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    # A list, because sum() over a generator is slower.
    size = target + sum([len(name) + len(value) for name, value in raw])
    if len(raw) > settings.max_headers or size > settings.max_header_bytes:
        raise large_headers()
    return Headers(raw)


def large_headers() -> HttpError:
    """Return the refusal of a header block that exceeds a limit."""
    message = "The headers are too many or too large. Send fewer or shorter ones."
    return HttpError(431, "large_headers", message, headers=CLOSE)


def slow_request(settings: Settings) -> HttpError:
    """Return the refusal of a request that did not arrive in time."""
    seconds = f"{settings.body_timeout_seconds:g}"
    message = f"The request did not arrive within {seconds} seconds. Send it again."
    return HttpError(408, "slow_request", message, headers=CLOSE)


class Body:
    """The body of one request while it arrives. Its creator must `take` or `discard` it."""

    __slots__ = ("_data", "_memory")

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._data: bytes | bytearray = b""

    def add(self, chunk: bytes) -> None:
        """Add a part. Raises RequestRefused (413, 503) if it exceeds a limit."""
        if not self._data:
            self._data = chunk
        elif isinstance(self._data, bytearray):
            self._data += chunk
        else:  # one buffer: an object for each tiny part would take many times its bytes
            self._data = bytearray(self._data) + chunk
        self._memory.used += len(chunk)
        self._memory.check(len(self._data))

    @property
    def is_empty(self) -> bool:
        """Whether no byte has arrived."""
        return not self._data

    def take(self) -> bytes:
        """Return the complete body and free its memory."""
        data = self._data
        self.discard()
        return bytes(data)

    def discard(self) -> None:
        """Free the memory of the body."""
        self._memory.used -= len(self._data)
        self._data = b""


class BodyMemory:
    """The memory that all arriving bodies share, and the limit on each."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_pending_bytes
        self.max_body_bytes = settings.max_body_bytes
        self._limit_of_large = max(self._limit * 3 // 4, self.max_body_bytes)
        self.used = 0

    def check(self, length: int) -> None:
        """Raise RequestRefused (413, 503) if a body of this length exceeds a limit."""
        if length > self.max_body_bytes:
            raise self.too_large()
        limit = self._limit if length <= SMALL_BODY_BYTES else self._limit_of_large
        if self.used > limit:
            raise Overloaded("Too many bodies are arriving at once. Retry later.")

    def too_large(self) -> RequestRefused:
        """Return the refusal of a body that exceeds the limit on each."""
        limit = self.max_body_bytes
        message = f"The body exceeds {limit} bytes. Send less, or raise max_body_bytes."
        return HttpError(413, "too_large", message, headers=CLOSE)


class _BodyRead:
    """The task that reads one body, and whether its deadline has passed."""

    def __init__(self) -> None:
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.is_complete = False
        self.is_expired = False

    def done(self) -> bool:
        return self.is_complete

    def expire(self) -> None:
        self.is_expired = True
        self.task.cancel()


class BodyReader:
    """Reads bodies from ASGI messages, or hands out a `Body` to collect one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._memory = BodyMemory(settings)
        self._deadlines = Deadlines(settings.body_timeout_seconds, _BodyRead.expire)

    def start(self, headers: Headers) -> Body:
        """Return the body to collect for a request. Raises RequestRefused (413, 415)."""
        encoding = headers.get(b"content-encoding")
        if encoding and encoding.strip().lower() != b"identity":
            message = "Send the body as it was signed, without a Content-Encoding."
            raise HttpError(415, "encoded_body", message, headers=CLOSE)
        content_length = headers.get(b"content-length")
        if content_length is not None and not self._is_within_limit(content_length):
            raise self._memory.too_large()
        return Body(self._memory)

    async def read(self, body: Body, receive: Receive) -> None:
        """Collect a body to its end. Raises RequestRefused (408, 413, 503) or Disconnected."""
        reading = _BodyRead()
        self._deadlines.add(reading)
        try:
            more = True
            while more:
                message = await receive()
                body.add(_chunk(message))
                more = bool(message.get("more_body"))
        except BaseException as error:
            is_empty = body.is_empty
            body.discard()
            if not isinstance(error, asyncio.CancelledError):
                raise
            is_cancelled_by_others = not reading.is_expired or reading.task.uncancel() > 0
            if is_cancelled_by_others:
                raise
            refusal = slow_request(self._settings)
            refusal.hint = _NO_BYTE if is_empty else ""
            raise refusal from None
        finally:
            reading.is_complete = True

    def _is_within_limit(self, content_length: bytes) -> bool:
        digits = content_length.rstrip(b" \t")
        is_number = digits.isdigit() and len(digits) <= _MAX_LENGTH_DIGITS
        return is_number and int(digits) <= self._memory.max_body_bytes


def _chunk(message: Message) -> bytes:
    if message["type"] != "http.request":
        raise Disconnected
    chunk: bytes = message.get("body", b"")
    return chunk
