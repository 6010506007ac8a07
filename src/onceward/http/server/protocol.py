"""One HTTP connection: complete webhooks go directly to the application, the rest to uvicorn.

Most webhooks arrive in a single read. Such a request is passed to the application in a plain call,
without a task. For any other request, the parser's callbacks are replayed to uvicorn in their
original order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onceward.http.responses import Receive, Respond, Response, Scope, Send
from onceward.http.server.writes import BufferedTransport, TickQueue
from onceward.settings import Settings

KEEP_ALIVE_SECONDS: Final = 75
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_END_OF_HEAD: Final = b"\r\n\r\n"
_EMPTY_RESPONSE: Final = "HTTP/1.1 {}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Application(Protocol):
    """An ASGI application that can also handle complete requests without a task."""

    def can_handle_directly(self, path: str) -> bool:
        """Return whether a POST to `path` may go to `handle_directly`."""

    def handle_directly(self, scope: Scope, body: bytes, respond: Respond) -> None:
        """Handle a complete request and call `respond` once, now or later."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""


DirectQueue = TickQueue[Scope, bytes, Respond]
"""Requests for `Application.handle_directly`."""
FlushQueue = TickQueue[BufferedTransport]
"""Connections with unsent responses."""


class _DirectRequest:
    """A request handled directly, with the attributes that uvicorn reads from its own cycle."""

    __slots__ = ("_protocol", "disconnected", "keep_alive", "response_complete")

    message_event: Final = asyncio.Event()  # uvicorn sets it on disconnect; no task waits for it

    def __init__(self, protocol: BoundedProtocol, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    def respond(self, response: Response) -> None:
        """Send the response, unless the sender has disconnected."""
        self.response_complete = True
        if not self.disconnected:
            self._protocol.send(response, keep_alive=self.keep_alive)


class BoundedProtocol(HttpToolsProtocol):
    """An HTTP/1.1 connection with limits on header size and on the time a sender may take."""

    def __init__(
        self,
        *args: Any,
        application: Application,
        requests: DirectQueue,
        flushes: FlushQueue,
        settings: Settings,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._application = application
        self._requests = requests
        self._flushes = flushes
        self._settings = settings
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._scope: Scope | None = None  # set while a direct request waits for its body
        self._body = b""
        self._header_bytes = 0
        self._in_headers = True
        self._is_chunk_mixed = False
        self._awaits_head = True
        self._read_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Start the timeout for the first request."""
        buffered = BufferedTransport(transport, self._flushes)
        super().connection_made(cast("asyncio.Transport", buffered))
        self._start_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._cancel_read_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse a chunk, then enforce the limits on an unfinished header block."""
        self._is_chunk_mixed = False
        super().data_received(_without_upgrade(data) if self._awaits_head else data)
        if self.transport.is_closing():
            return
        if self._scope is not None:
            self._replay_to_uvicorn()  # the rest of the body is still to come
        if self._in_headers and not self._is_chunk_mixed:
            self._header_bytes += len(data)
        if self._in_headers and self._header_bytes > self._settings.max_header_bytes:
            self._close_with("431 Request Header Fields Too Large")
        elif self._read_timer is None and (self._in_headers or not self._owes_response):
            self._start_read_timer()

    # Parser callbacks.

    def on_message_begin(self) -> None:
        """Start a new header block."""
        self._url = b""
        self._headers = []
        self._in_headers = True
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Collect a part of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Choose between direct handling and uvicorn. The application times the body."""
        if self.parser.should_upgrade():
            raise ValueError("an upgrade request would lose its body")  # uvicorn responds with 400
        self._in_headers = False
        self._awaits_head = False
        self._is_chunk_mixed = True
        self._cancel_read_timer()
        self._body = b""
        self._scope = self._direct_scope()
        if self._scope is None:
            self._replay_to_uvicorn()

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body, or pass it to uvicorn."""
        if self._scope is not None:
            self._body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Queue a complete direct request. Further data in the chunk is the next request."""
        self._is_chunk_mixed = True
        self._awaits_head = True
        scope, self._scope = self._scope, None
        if scope is None:
            super().on_message_complete()
            return
        request = _DirectRequest(self, keep_alive=self.parser.should_keep_alive())
        self.cycle = cast("Any", request)
        self._requests.add(scope, self._body, request.respond)

    def _direct_scope(self) -> Scope | None:
        """Return the scope of a request for direct handling, or None if uvicorn must handle it."""
        is_plain = self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1"
        if not is_plain or self._owes_response or self.flow.write_paused:
            return None
        target = _target(self._url)
        if target is None or not self._application.can_handle_directly(target["path"]):
            return None
        return {
            **target,
            "type": "http",
            "method": "POST",
            "headers": self._headers,
            "scheme": self.scheme,
            "client": self.client,
        }

    def _replay_to_uvicorn(self) -> None:
        """Pass the callbacks collected so far to uvicorn."""
        self._scope = None
        super().on_message_begin()
        super().on_url(self._url)
        for name, value in self._headers:
            super().on_header(name, value)
        super().on_headers_complete()
        if self._body:
            super().on_body(self._body)

    # Responses.

    def send(self, response: Response, *, keep_alive: bool) -> None:
        """Send the response to a direct request."""
        default_headers = self.server_state.default_headers
        self.transport.write(response.to_bytes(default_headers, keep_alive=keep_alive))
        if response.closes_connection or not keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """Start the next pipelined request, or start the idle timeout.

        The connection keeps one idle timer: setting a timer per response would cost more than
        checking the time when it fires.
        """
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        if self._owes_response or self._read_timer is not None:
            return
        remaining = self._idle_since + KEEP_ALIVE_SECONDS - self.loop.time()
        if remaining > 0:
            self._idle_timer = self.loop.call_later(remaining, self._close_if_idle)
        else:
            self.transport.close()

    @property
    def _owes_response(self) -> bool:
        """Whether a request still needs its response."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    # Timeouts.

    def _start_read_timer(self) -> None:
        seconds = self._settings.body_timeout_seconds
        self._read_timer = self.loop.call_later(seconds, self._close_with, "408 Request Timeout")

    def _cancel_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _close_with(self, status: str) -> None:
        """Close the connection; respond only if no other request is owed a response."""
        if self._in_headers and not self._owes_response:
            self.transport.write(_EMPTY_RESPONSE.format(status).encode())
        self.transport.close()


@lru_cache(maxsize=100)
def _target(url: bytes) -> Mapping[str, Any] | None:
    """Return the scope's parts of a plain target, or None if it needs uvicorn's full parsing."""
    if not url.startswith(b"/") or b"%" in url or b"#" in url:
        return None
    path, _, query = url.partition(b"?")
    return {"path": path.decode("ascii"), "raw_path": path, "query_string": query}


def _without_upgrade(data: bytes) -> bytes:
    """Return the chunk without an upgrade offer, at which the parser would stop."""
    end = data.find(_END_OF_HEAD)
    head = data if end < 0 else data[:end]
    if b"pgrade:" not in head.lower():
        return data
    return _UPGRADE.sub(b"\r\nx-not-upgraded:", head) + data[len(head) :]
