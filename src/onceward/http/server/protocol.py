"""HTTP on one connection: what is to be recorded goes the short way, all else goes uvicorn's.

The short way is for a request that is whole when its first bytes are read, as webhooks are: the
application takes it without a task, and answers with a call. uvicorn is told of nothing until it is
needed; then it is told what the parser said, in the same order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onceward.http.responses import Receive, Response, Scope, Send
from onceward.http.server.writes import BufferedTransport, TickQueue
from onceward.settings import Settings

KEEP_ALIVE_SECONDS: Final = 75
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_END_OF_HEAD: Final = b"\r\n\r\n"
_EMPTY_RESPONSE: Final = "HTTP/1.1 {}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


Respond = Callable[[Response], None]
"""Sends the response to a request."""


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
    """A request that the application took, where uvicorn looks for one that it runs."""

    __slots__ = ("_protocol", "disconnected", "keep_alive", "response_complete")

    message_event: Final = asyncio.Event()

    def __init__(self, protocol: BoundedProtocol, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    def respond(self, response: Response) -> None:
        """Send the answer, if there is still somebody to read it."""
        self.response_complete = True
        if not self.disconnected:
            self._protocol.send(response, keep_alive=self.keep_alive)


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose header block is too large, or whose sender is too slow."""

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
        self._scope: Scope | None = None  # of a request that can be taken once its body is whole
        self._body = b""
        self._header_bytes = 0
        self._in_headers = True
        self._is_chunk_mixed = False
        self._awaits_head = True
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Begin to wait for the first request."""
        buffered = BufferedTransport(transport, self._flushes)
        super().connection_made(cast("asyncio.Transport", buffered))
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._cancel_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and see whether the header block is still open."""
        self._is_chunk_mixed = False
        super().data_received(_without_upgrade(data) if self._awaits_head else data)
        if self.transport.is_closing():
            return
        if self._scope is not None:
            self._replay_to_uvicorn()  # the rest of its body is on the way
        if self._in_headers and not self._is_chunk_mixed:
            self._header_bytes += len(data)
        if self._in_headers and self._header_bytes > self._settings.max_header_bytes:
            self._close_with("431 Request Header Fields Too Large")
        elif self._timer is None and (self._in_headers or not self._owes_response):
            self._start_timer()

    # What the parser says.

    def on_message_begin(self) -> None:
        """Begin to count a header block."""
        self._url = b""
        self._headers = []
        self._in_headers = True
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Keep a part of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """End to count; the time for the body is the application's to watch."""
        if self.parser.should_upgrade():
            raise ValueError("a request to upgrade would be taken without its body")  # it is 400
        self._in_headers = False
        self._awaits_head = False
        self._is_chunk_mixed = True
        self._cancel_timer()
        self._body = b""
        self._scope = self._direct_scope()
        if self._scope is None:
            self._replay_to_uvicorn()

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body, or pass it on."""
        if self._scope is not None:
            self._body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Have the application take what is whole. What follows in the same chunk is another."""
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
        """The scope of a request that can be taken; None where it goes uvicorn's way."""
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
        """Tell uvicorn what the parser said until now."""
        self._scope = None
        super().on_message_begin()
        super().on_url(self._url)
        for name, value in self._headers:
            super().on_header(name, value)
        super().on_headers_complete()
        if self._body:
            super().on_body(self._body)

    # Answers.

    def send(self, response: Response, *, keep_alive: bool) -> None:
        """Send the answer to a request that was taken."""
        default_headers = self.server_state.default_headers
        self.transport.write(response.to_bytes(default_headers, keep_alive=keep_alive))
        if response.closes_connection or not keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """Go on with what waits, or wait for a while.

        One timer stays for the connection: to set one after each answer costs more than to look.
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
        if self._owes_response or self._timer is not None:
            return
        remaining = self._idle_since + KEEP_ALIVE_SECONDS - self.loop.time()
        if remaining > 0:
            self._idle_timer = self.loop.call_later(remaining, self._close_if_idle)
        else:
            self.transport.close()

    @property
    def _owes_response(self) -> bool:
        """Whether a request is being answered. Else what comes belongs to none, or comes late."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    # Time.

    def _start_timer(self) -> None:
        seconds = self._settings.body_timeout_seconds
        self._timer = self.loop.call_later(seconds, self._close_with, "408 Request Timeout")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_with(self, status: str) -> None:
        """Close the connection, with an answer where it cannot be taken for another's."""
        if self._in_headers and not self._owes_response:
            self.transport.write(_EMPTY_RESPONSE.format(status).encode())
        self.transport.close()


@lru_cache(maxsize=100)
def _target(url: bytes) -> Mapping[str, Any] | None:
    """The parts of an address, as a scope has them; None where they are not plain to see."""
    if not url.startswith(b"/") or b"%" in url or b"#" in url:
        return None
    path, _, query = url.partition(b"?")
    return {"path": path.decode("ascii"), "raw_path": path, "query_string": query}


def _without_upgrade(data: bytes) -> bytes:
    """A request that offers another protocol, without the offer: the parser would stop at it."""
    end = data.find(_END_OF_HEAD)
    head = data if end < 0 else data[:end]
    if b"pgrade:" not in head.lower():
        return data
    return _UPGRADE.sub(b"\r\nx-not-upgraded:", head) + data[len(head) :]
