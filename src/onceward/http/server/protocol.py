"""HTTP on one connection: what is to be recorded goes the short way, all else goes uvicorn's.

The short way is for a request that is whole when its first bytes are read, as webhooks are: the
application takes it without a task, and answers with a call. uvicorn is told of nothing until it is
needed; then it is told what the parser said, in the same order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onceward.http.responses import Answer, Scope
from onceward.http.server.writes import BufferedTransport, Intake, Outlet
from onceward.settings import Settings

KEEP_ALIVE_SECONDS: Final = 75
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_END_OF_HEAD: Final = b"\r\n\r\n"
_RESPONSE: Final = "HTTP/1.1 {}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _Nobody:
    """Stands where uvicorn wakes whoever waits for a body."""

    def set(self) -> None:
        """There is nobody to wake."""


class _Taken:
    """A request that the application took, where uvicorn looks for one that it runs."""

    __slots__ = ("_protocol", "disconnected", "keep_alive", "response_complete")

    message_event: Final = _Nobody()

    def __init__(self, protocol: BoundedProtocol, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    def give(self, answer: Answer) -> None:
        """Send the answer, if there is still somebody to read it."""
        self.response_complete = True
        if not self.disconnected:
            self._protocol.send(answer, keep_alive=self.keep_alive)


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose header block is too large, or whose sender is too slow."""

    def __init__(
        self, *args: Any, intake: Intake, outlet: Outlet, bounds: Settings, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._intake = intake
        self._outlet = outlet
        self._bounds = bounds
        self._url = b""
        self._head: list[tuple[bytes, bytes]] = []
        self._scope: Scope | None = None  # of a request that can be taken once its body is whole
        self._body = b""
        self._header_bytes = 0
        self._in_headers = True
        self._is_mixed = False
        self._awaits_head = True
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Begin to wait for the first request."""
        corked = BufferedTransport(transport, self._outlet)
        super().connection_made(cast("asyncio.Transport", corked))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._unwatch()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and see whether the header block is still open."""
        self._is_mixed = False
        super().data_received(_without_upgrade(data) if self._awaits_head else data)
        if self.transport.is_closing():
            return
        if self._scope is not None:
            self._pass_on()  # the rest of its body is on the way
        if self._in_headers and not self._is_mixed:
            self._header_bytes += len(data)
        if self._in_headers and self._header_bytes > self._bounds.max_header_bytes:
            self._end("431 Request Header Fields Too Large")
        elif self._timer is None and (self._in_headers or not self._owes_answer):
            self._watch()

    # What the parser says.

    def on_message_begin(self) -> None:
        """Begin to count a header block."""
        self._url = b""
        self._head = []
        self._in_headers = True
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Keep a part of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._head.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """End to count; the time for the body is the application's to watch."""
        if self.parser.should_upgrade():
            raise ValueError("a request to upgrade would be taken without its body")  # it is 400
        self._in_headers = False
        self._awaits_head = False
        self._is_mixed = True
        self._unwatch()
        self._body = b""
        self._scope = self._takeable()
        if self._scope is None:
            self._pass_on()

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body, or pass it on."""
        if self._scope is not None:
            self._body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Have the application take what is whole. What follows in the same chunk is another."""
        self._is_mixed = True
        self._awaits_head = True
        scope, self._scope = self._scope, None
        if scope is None:
            super().on_message_complete()
            return
        taken = _Taken(self, keep_alive=self.parser.should_keep_alive())
        self.cycle = cast("Any", taken)
        self._intake.add(scope, self._body, taken.give)

    def _takeable(self) -> Scope | None:
        """The scope of a request that can be taken; None where it goes uvicorn's way."""
        is_plain = self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1"
        if not is_plain or self._owes_answer or self.flow.write_paused:
            return None
        target = _target(self._url)
        if target is None or not self._intake.application.takes(target["path"]):
            return None
        return {
            **target,
            "type": "http",
            "method": "POST",
            "headers": self._head,
            "scheme": self.scheme,
            "client": self.client,
        }

    def _pass_on(self) -> None:
        """Tell uvicorn what the parser said until now."""
        self._scope = None
        super().on_message_begin()
        super().on_url(self._url)
        for name, value in self._head:
            super().on_header(name, value)
        super().on_headers_complete()
        if self._body:
            super().on_body(self._body)

    # Answers.

    def send(self, answer: Answer, *, keep_alive: bool) -> None:
        """Send the answer to a request that was taken."""
        default = self.server_state.default_headers
        self.transport.write(answer.on_wire(default, keep_alive=keep_alive))
        if answer.closes or not keep_alive:
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
            self._idle_timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        self._idle_timer = None
        if self._owes_answer or self._timer is not None:
            return
        left = self._idle_since + KEEP_ALIVE_SECONDS - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._look_whether_idle)
        else:
            self.transport.close()

    @property
    def _owes_answer(self) -> bool:
        """Whether a request is being answered. Else what comes belongs to none, or comes late."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    # Time.

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
