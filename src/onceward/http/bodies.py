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
        message = "The headers are too many or too large. Send fewer or shorter ones."
        raise HttpError(431, "large_headers", message, headers=CLOSE)
    return Headers(raw)


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
    """Reads bodies. All bodies that are being read share one memory limit."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._buffered_bytes = 0
        self._deadlines = Deadlines(settings.body_timeout_seconds, _BodyRead.expire)

    def check(self, headers: Headers, body: bytes) -> None:
        """Check a complete body. Raises RequestRefused (400, 413, 415)."""
        self._check_encoding(headers)
        if len(body) > self._limit:
            raise self._too_large()

    def _check_encoding(self, headers: Headers) -> None:
        encoding = headers.get(b"content-encoding")
        if encoding and encoding.strip().lower() != b"identity":
            message = "Send the body as it was signed, without a Content-Encoding."
            raise HttpError(415, "encoded_body", message, headers=CLOSE)

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """Return the complete body.

        Raises RequestRefused (400, 408, 413, 415, 503) or Disconnected.
        """
        self._check_encoding(headers)
        content_length = headers.get(b"content-length")
        if content_length is not None and not self._is_within_limit(content_length):
            raise self._too_large()
        reading = _BodyRead()
        self._deadlines.add(reading)
        try:
            body = await self._read_body(receive)
        except asyncio.CancelledError:
            is_cancelled_by_others = not reading.is_expired or reading.task.uncancel() > 0
            if is_cancelled_by_others:
                raise
            seconds = f"{self._settings.body_timeout_seconds:g}"
            message = f"The body did not arrive within {seconds} seconds. Send it again."
            raise HttpError(408, "slow_body", message, headers=CLOSE) from None
        finally:
            reading.is_complete = True
        return body

    async def _read_body(self, receive: Receive) -> bytes:
        first = await receive()
        chunk = self._chunk(first)
        if not first.get("more_body"):
            if len(chunk) > self._limit:
                raise self._too_large()
            return chunk
        return await self._read_chunks(chunk, receive)

    async def _read_chunks(self, chunk: bytes, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        length = 0
        try:
            more = True
            while True:
                chunks.append(chunk)
                length += len(chunk)
                self._buffered_bytes += len(chunk)
                if length > self._limit:
                    raise self._too_large()
                if self._buffered_bytes > self._settings.max_pending_bytes:
                    raise Overloaded("Too many bodies are arriving at once. Retry later.")
                if not more:
                    return b"".join(chunks)
                message = await receive()
                chunk = self._chunk(message)
                more = bool(message.get("more_body"))
        finally:
            self._buffered_bytes -= length

    @property
    def _limit(self) -> int:
        return self._settings.max_body_bytes

    def _is_within_limit(self, content_length: bytes) -> bool:
        is_number = content_length.isdigit() and len(content_length) <= _MAX_LENGTH_DIGITS
        return is_number and int(content_length) <= self._limit

    def _too_large(self) -> RequestRefused:
        message = f"The body exceeds {self._limit} bytes. Send less, or raise max_body_bytes."
        return HttpError(413, "too_large", message, headers=CLOSE)

    @staticmethod
    def _chunk(message: Message) -> bytes:
        if message["type"] != "http.request":
            raise Disconnected
        chunk: bytes = message.get("body", b"")
        return chunk
