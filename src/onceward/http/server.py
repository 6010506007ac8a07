"""The HTTP server: uvicorn, with limits on its senders that it does not have itself."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from onceward.errors import ConfigurationError
from onceward.http.answers import Answer, Receive, Scope, Send
from onceward.settings import Settings

KEEP_ALIVE_SECONDS: Final = 75
BACKLOG: Final = 4096
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_RESPONSE: Final = "HTTP/1.1 {}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Application(Protocol):
    """An ASGI application that can also be given requests whose body is whole."""

    def takes(self, scope: Scope) -> bool:
        """Whether a request can be given to `take` when its body is whole."""

    def take(self, scope: Scope, body: bytes, give: Callable[[Answer], None]) -> None:
        """Take a request, and give the answer when there is one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose header block is too large, or whose sender is too slow.

    A request that is whole when its first bytes are read needs no task of its own: the application
    takes it at once. All others go uvicorn's way.
    """

    def __init__(
        self, *args: Any, application: Application, bounds: Settings, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._application = application
        self._bounds = bounds
        self._is_at_head = False
        self._held: RequestResponseCycle | None = None
        self._header_bytes = 0
        self._in_headers = True
        self._is_mixed = False
        self._awaits_head = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Begin to wait for the first request."""
        super().connection_made(cast("asyncio.Transport", _Corked(transport, self.loop)))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._unwatch()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin to count a header block."""
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        """End to count; the time for the body is the application's to watch."""
        if self.parser.should_upgrade():
            raise ValueError("a request to upgrade would be taken without its body")  # it is 400
        self._in_headers = False
        self._awaits_head = False
        self._is_mixed = True
        self._unwatch()
        self._is_at_head = True
        super().on_headers_complete()
        self._is_at_head = False

    def on_message_complete(self) -> None:
        """What follows in the same chunk is another request."""
        self._is_mixed = True
        self._awaits_head = True
        super().on_message_complete()
        held, self._held = self._held, None
        if held is not None:
            scope = cast("Scope", held.scope)
            self._application.take(scope, bytes(held.body), partial(self._give, held))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        can_hold = self._is_at_head and not self._is_clogged
        if can_hold and self._application.takes(cast("Scope", cycle.scope)):
            self._held = cycle
        else:
            super()._start_asgi_task(cycle, app)

    @property
    def _is_clogged(self) -> bool:
        """Whether the sender does not read its answers."""
        return self.flow.write_paused

    def _give(self, cycle: RequestResponseCycle, answer: Answer) -> None:
        """Send an answer, as the cycle would, or have it do so where there is more to it."""
        if cycle.disconnected:
            return
        if answer.headers or not cycle.keep_alive or self._is_clogged:
            task = self.loop.create_task(answer.send(cast("Send", cycle.send)))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
            return
        headers = [*cycle.default_headers, *answer.all_headers]
        head = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[answer.status], head, answer.body))
        cycle.response_started = cycle.response_complete = True
        cycle.on_response()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and see whether the header block is still open."""
        self._is_mixed = False
        super().data_received(_without_upgrade(data) if self._awaits_head else data)
        held, self._held = self._held, None
        if self.transport.is_closing():
            return
        if held is not None:  # the rest of its body is on the way
            super()._start_asgi_task(held, self.app)
        if self._in_headers and not self._is_mixed:
            self._header_bytes += len(data)
        if self._in_headers and self._header_bytes > self._bounds.max_header_bytes:
            self._end("431 Request Header Fields Too Large")
        elif self._timer is None and (self._in_headers or not self._owes_answer):
            self._watch()

    @property
    def _owes_answer(self) -> bool:
        """Whether a request is being answered. Else what comes belongs to none, or comes late."""
        cycle: RequestResponseCycle | None = cast("Any", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _watch(self) -> None:
        seconds = self._bounds.body_timeout_seconds
        self._timer = self.loop.call_later(seconds, self._end, "408 Request Timeout")

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: str) -> None:
        """Close the connection, with an answer where it cannot be taken for another's."""
        if self._in_headers and not self._owes_answer:
            self.transport.write(_RESPONSE.format(status).encode())
        self.transport.close()


class _Corked:
    """A transport that sends what is written in one turn of the loop at once.

    uvicorn writes the head of an answer and its body apart: two calls of the system for each.
    """

    __slots__ = ("_loop", "_transport", "_written")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _flush(self) -> None:
        written, self._written = self._written, []
        if written:
            self._transport.write(b"".join(written))


def _without_upgrade(data: bytes) -> bytes:
    """A request that offers another protocol, without the offer: the parser would stop at it."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if b"pgrade:" not in head.lower():
        return data
    return _UPGRADE.sub(b"\r\nx-not-upgraded:", head) + end + rest


class Server(uvicorn.Server):
    """A server in a process that has more to do: logs and signals are left to the process."""

    def __init__(self, app: Application, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(BoundedProtocol, application=app, bounds=settings),  # type: ignore[arg-type] # a factory will do
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, int(settings.drain_seconds)),
                backlog=BACKLOG,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket on which to serve. Raises ConfigurationError that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        msg = f"Cannot listen on {host}:{port}: {reason}. Choose another with --host or --port."
        raise ConfigurationError(msg) from error
    return listener
