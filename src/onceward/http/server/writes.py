"""Requests and responses in groups: what is handled and written in one iteration of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from onceward.http.responses import Answer, Receive, Scope, Send

TAKEN_IN_A_TURN: Final = 16


class Intake:
    """Has the application take a few requests in each turn of the loop.

    All that come at once would make one long turn, in which nobody hears that the ledger has
    written what came before: process and ledger would work in turn, and not side by side.
    """

    def __init__(self, application: Application) -> None:
        self.application = application
        self._waiting: deque[tuple[Scope, bytes, Callable[[Answer], None]]] = deque()

    def add(self, scope: Scope, body: bytes, give: Callable[[Answer], None]) -> None:
        """Have a request taken, in this turn or in one of the next."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._take)
        self._waiting.append((scope, body, give))

    def _take(self) -> None:
        try:
            for _ in range(min(len(self._waiting), TAKEN_IN_A_TURN)):
                self.application.take(*self._waiting.popleft())
        finally:  # whatever happens to one of them
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._take)


class Outlet:
    """Sends what was written in one turn of the loop, to all connections one after the other.

    An answer takes longer to make than to send. If each was sent as it is made, each would wake its
    reader, who would take the processor away from the making of the next.
    """

    def __init__(self) -> None:
        self._waiting: deque[BufferedTransport] = deque()

    def add(self, connection: BufferedTransport) -> None:
        """Have what is written to a connection sent in the next turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(connection)

    def _send(self) -> None:
        try:
            while self._waiting:
                self._waiting.popleft().flush()
        finally:  # whatever happens to one of them
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._send)


class BufferedTransport:
    """A transport that sends what is written in one turn of the loop at once, in the next.

    uvicorn writes the head of an answer and its body apart: two calls of the system for each.
    """

    __slots__ = ("_outlet", "_transport", "_written")

    def __init__(self, transport: asyncio.Transport, outlet: Outlet) -> None:
        self._transport = transport
        self._outlet = outlet
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it in the next turn."""
        if not self._written:
            self._outlet.add(self)
        self._written.append(data)

    def close(self) -> None:
        """Send what was written, and close."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._transport.is_closing()

    def flush(self) -> None:
        """Send what was written, if there is still somebody to read it."""
        written, self._written = self._written, []
        if written and not self._transport.is_closing():
            self._transport.write(b"".join(written))


class Application(Protocol):
    """An ASGI application that can also be given requests whose body is whole."""

    def takes(self, path: str) -> bool:
        """Whether what is posted there can be given to `take` when its body is whole."""

    def take(self, scope: Scope, body: bytes, give: Callable[[Answer], None]) -> None:
        """Take a request, and give the answer when there is one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
