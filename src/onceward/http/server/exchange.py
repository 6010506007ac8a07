"""One request in progress: handled in plain calls, or by a task that runs the ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from onceward.http.responses import (
    INTERNAL_ERROR,
    Header,
    Message,
    Receive,
    Respond,
    Scope,
    Send,
    encode_head,
)
from onceward.runtime.error_text import locate
from onceward.runtime.log_fields import LogFields
from onceward.sources.request import Headers

_log = logging.getLogger("onceward.http")

MAX_BUFFERED_BYTES: Final = 64 * 1024
"""Bytes of a body that wait for the application before the connection stops reading."""
_CHUNKED: Final = (b"transfer-encoding", b"chunked")
_WITHOUT_BODY: Final = frozenset({204, 304})


class Exchange(Protocol):
    """A request in progress. The connection tells it what arrives."""

    @property
    def is_full(self) -> bool:
        """Whether no more of the body may arrive for now."""

    def add(self, chunk: bytes) -> None:
        """Take a part of the body."""

    def complete(self) -> None:
        """Take the end of the request."""

    def disconnect(self) -> None:
        """Take note that the sender has disconnected."""


class Application(Protocol):
    """An ASGI application that can also handle requests without a task."""

    def start_directly(self, scope: Scope, headers: Headers, respond: Respond) -> Exchange | None:
        """Start a request that is handled in plain calls, or return None if it needs a task.

        The application calls `respond` once, now or later.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""


class ResponseWriter(Protocol):
    """Writes the response of an `AsgiExchange`."""

    @property
    def default_headers(self) -> list[Header]:
        """The headers that every response has."""

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection stays open after this response."""

    def write(self, data: bytes) -> None:
        """Write a part of the response."""

    async def drain(self) -> None:
        """Wait until the client has read enough of the response."""

    def finish(self, *, keep_alive: bool) -> None:
        """Take note that the response is complete."""

    def allow_body(self) -> None:
        """Tell a client that waits for permission to send the body, and read on."""

    def abort(self) -> None:
        """Break the connection: the response cannot be completed."""


class AsgiExchange:
    """A request handled by a task that runs the ASGI application."""

    def __init__(self, application: Application, scope: Scope, writer: ResponseWriter) -> None:
        self._application = application
        self._scope = scope
        self._writer = writer
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._is_complete = False
        self._is_disconnected = False
        self._arrived = asyncio.Event()
        self._status: int | None = None
        self._headers: list[Header] = []
        self._is_head_written = False
        self._is_chunked = False
        self._is_finished = False

    def start(self, on_done: Callable[[asyncio.Task[None]], object]) -> asyncio.Task[None]:
        """Start the task."""
        task = asyncio.get_running_loop().create_task(self._run())
        task.add_done_callback(on_done)
        return task

    # The request.

    @property
    def is_full(self) -> bool:
        """Whether the application must read before more of the body may arrive."""
        return self._buffered_bytes > MAX_BUFFERED_BYTES

    def add(self, chunk: bytes) -> None:
        """Take a part of the body. Nobody reads it once the response is complete."""
        if not self._is_finished:
            self._chunks.append(chunk)
            self._buffered_bytes += len(chunk)
            self._arrived.set()

    def complete(self) -> None:
        """Take the end of the request."""
        self._is_complete = True
        self._arrived.set()

    def disconnect(self) -> None:
        """Let the application know that the client has disconnected."""
        self._is_disconnected = True
        self._arrived.set()

    # The application.

    async def _run(self) -> None:
        try:
            await self._application(self._scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - the client needs an answer
            reason = locate(error)
            _log.error("request failed: %s", reason, extra=LogFields(error=reason))
        else:
            if not self._is_over:
                _log.error("request failed: the application sent no complete response")
        finally:
            await self._end()

    async def _end(self) -> None:
        """Send a 500 if no response has begun; break the connection if one cannot be completed."""
        if not self._is_over and self._status is None:
            await INTERNAL_ERROR.send(self._send)
        if not self._is_over:
            self._writer.abort()

    @property
    def _is_over(self) -> bool:
        return self._is_finished or self._is_disconnected

    async def _receive(self) -> Message:
        if not (self._is_over or self._chunks or self._is_complete):
            self._writer.allow_body()
        if not self._is_over:
            await self._arrived.wait()
        if self._is_over:
            return {"type": "http.disconnect"}
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered_bytes = 0
        self._arrived.clear()
        more = not self._is_complete
        if more:
            self._writer.allow_body()
        return {"type": "http.request", "body": body, "more_body": more}

    async def _send(self, message: Message) -> None:
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message.get("headers", ()))
            return
        if self._status is None:
            raise RuntimeError("the application sent a body before the status")
        body, more = message.get("body", b""), message.get("more_body", False)
        has_body = self._scope["method"] != "HEAD" and self._status not in _WITHOUT_BODY
        data = b""
        if not self._is_head_written:
            data = self._encode_head(self._status, len(body), more=more)
        if has_body:
            data += self._encode_part(body, more=more)
        self._is_head_written = True
        if data:
            self._writer.write(data)
        if more:
            await self._writer.drain()
            return
        self._is_finished = True
        self._arrived.set()
        self._writer.finish(keep_alive=self._keeps_alive)

    # The response as bytes.

    @property
    def _keeps_alive(self) -> bool:
        headers = [(name.lower(), value.lower()) for name, value in self._headers]
        return self._writer.keeps_alive and (b"connection", b"close") not in headers

    def _encode_head(self, status: int, length: int, *, more: bool) -> bytes:
        names = {name.lower() for name, _ in self._headers}
        extra: list[Header] = []
        if b"content-length" not in names and status not in _WITHOUT_BODY:
            self._is_chunked = more
            extra.append(_CHUNKED if more else (b"content-length", b"%d" % length))
        if not self._keeps_alive and b"connection" not in names:
            extra.append((b"connection", b"close"))
        return encode_head(status, [*self._headers, *extra, *self._writer.default_headers])

    def _encode_part(self, body: bytes, *, more: bool) -> bytes:
        if not self._is_chunked:
            return body
        part = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return part if more else part + b"0\r\n\r\n"
