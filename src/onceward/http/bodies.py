"""Headers and bodies, read within limits on size, time and memory."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from onceward.errors import OncewardError, RequestRefused
from onceward.http.body_memory import Body, BodyMemory
from onceward.http.errors import CLOSE, HttpError
from onceward.http.responses import Message, Receive, Scope
from onceward.runtime.deadlines import Deadlines
from onceward.settings import Settings
from onceward.sources.request import Headers

_MAX_LENGTH_DIGITS: Final = 18
_NO_BYTE: Final = (
    "No byte of the body arrived: if a middleware of your app reads the body, it must pass it on."
)


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


class _BodyRead:
    """The task that reads one body, and why it must stop."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.is_complete = False
        self.refusal: RequestRefused | None = None

    def done(self) -> bool:
        return self.is_complete

    def refuse(self, refusal: RequestRefused) -> None:
        if self.refusal is None:
            self.refusal = refusal
            self.task.cancel()

    def raise_refusal(self) -> None:
        """Raise the refusal if a middleware has kept the cancellation for itself."""
        if self.refusal is not None:
            raise self.refusal


class BodyReader:
    """Reads bodies from ASGI messages, or hands out a `Body` to collect one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._memory = BodyMemory(settings)
        self._deadlines = Deadlines(settings.body_timeout_seconds, self._expire)

    def start(self, scope: Scope, headers: Headers) -> Body:
        """Return the body to collect for a request. Raises RequestRefused (413, 415)."""
        encoding = headers.get(b"content-encoding")
        if encoding and encoding.strip().lower() != b"identity":
            message = "Send the body as it was signed, without a Content-Encoding."
            raise HttpError(415, "encoded_body", message, headers=CLOSE)
        content_length = headers.get(b"content-length")
        if content_length is not None and not self._is_within_limit(content_length):
            raise self._memory.too_large()
        return Body(self._memory, scope, headers)

    async def read(self, body: Body, receive: Receive) -> None:
        """Collect a body to its end. Raises RequestRefused (408, 413, 503) or Disconnected."""
        reading = _BodyRead(body)
        self._deadlines.add(reading)
        try:
            more = True
            while more:
                message = await receive()
                reading.raise_refusal()
                body.add(_chunk(message), reading.refuse)
                more = bool(message.get("more_body"))
        except BaseException as error:
            body.discard()
            if not isinstance(error, asyncio.CancelledError):
                raise
            if reading.refusal is None or reading.task.uncancel() > 0:
                raise  # cancelled by others
            raise reading.refusal from None
        finally:
            reading.is_complete = True

    def _expire(self, reading: _BodyRead) -> None:
        refusal = slow_request(self._settings)
        refusal.hint = _NO_BYTE if reading.body.is_empty else ""
        reading.refuse(refusal)

    def _is_within_limit(self, content_length: bytes) -> bool:
        digits = content_length.rstrip(b" \t")
        is_number = digits.isdigit() and len(digits) <= _MAX_LENGTH_DIGITS
        return is_number and int(digits) <= self._memory.max_body_bytes


def _chunk(message: Message) -> bytes:
    if message["type"] != "http.request":
        raise Disconnected
    chunk: bytes = message.get("body", b"")
    return chunk
