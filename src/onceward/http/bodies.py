"""Reading headers and bodies within limits of size, time and memory."""

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
    """The sender went away before its body was whole. Nothing was recorded."""


def require_json(headers: Headers) -> None:
    """Raise RequestRefused (415) unless the body is said to be JSON: no form can say that."""
    kind = (headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        message = "Send JSON, with the header Content-Type: application/json."
        raise HttpError(415, "not_json", message)


def bounded_headers(scope: Scope, settings: Settings) -> Headers:
    """The headers of a request. Raises RequestRefused (431) for too many or too large ones."""
    raw = scope["headers"]
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    size = target + sum([len(name) + len(value) for name, value in raw])  # quicker as a list
    if len(raw) > settings.max_headers or size > settings.max_header_bytes:
        message = "The headers are too many or too large."
        raise HttpError(431, "large_headers", message, headers=CLOSE)
    return Headers(raw)


class _BodyRead:
    """A body that is being read, until it is whole."""

    def __init__(self) -> None:
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.is_complete = False
        self.is_late = False

    def done(self) -> bool:
        return self.is_complete

    def expire(self) -> None:
        self.is_late = True
        self.task.cancel()


class BodyReader:
    """Reads bodies; all that are being read share one limit of memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._buffered_bytes = 0
        self._deadlines = Deadlines(settings.body_timeout_seconds, _BodyRead.expire)

    def check(self, headers: Headers, body: bytes) -> None:
        """Raise RequestRefused (400, 413, 415) for a body that is encoded or too large."""
        self._check_encoding(headers)
        if len(body) > self._limit:
            raise self._too_large()

    def _check_encoding(self, headers: Headers) -> None:
        encoding = headers.get(b"content-encoding")
        if encoding and encoding.strip().lower() != b"identity":
            message = "Send the body as it was signed, without a Content-Encoding."
            raise HttpError(415, "encoded_body", message, headers=CLOSE)

    async def read(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body. Raises RequestRefused (400, 408, 413, 415, 503) or Disconnected."""
        self._check_encoding(headers)
        content_length = headers.get(b"content-length")
        if content_length is not None and not self._is_within_limit(content_length):
            raise self._too_large()
        reading = _BodyRead()
        self._deadlines.add(reading)
        try:
            body = await self._read_body(receive)
        except asyncio.CancelledError:
            if not reading.is_late or reading.task.uncancel() > 0:  # somebody else broke it off
                raise
            message = f"The body did not arrive in {self._settings.body_timeout_seconds:g} s."
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
                    raise Overloaded("Too many bodies arrive at once. Try again later.")
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
        message = f"The body is larger than {self._limit} bytes; see the setting max_body_bytes."
        return HttpError(413, "too_large", message, headers=CLOSE)

    @staticmethod
    def _chunk(message: Message) -> bytes:
        if message["type"] != "http.request":
            raise Disconnected
        chunk: bytes = message.get("body", b"")
        return chunk
