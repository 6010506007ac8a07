"""Work grouped by event loop iteration: requests to handle, and responses to write."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class TickQueue(Generic[*Arguments]):
    """Calls queued for the next iterations of the event loop, at most `limit` per iteration."""

    def __init__(self, call: Callable[[*Arguments], object], *, limit: int = sys.maxsize) -> None:
        self._call = call
        self._limit = limit
        self._queued: deque[tuple[*Arguments]] = deque()

    def add(self, *arguments: *Arguments) -> None:
        """Queue a call. It runs in the next iteration unless `limit` calls are ahead of it."""
        if not self._queued:
            asyncio.get_running_loop().call_soon(self._run)
        self._queued.append(arguments)

    def _run(self) -> None:
        try:
            for _ in range(min(len(self._queued), self._limit)):
                self._call(*self._queued.popleft())
        finally:  # a call that raises must not stop the calls behind it
            if self._queued:
                asyncio.get_running_loop().call_soon(self._run)


class BufferedTransport:
    """A transport that buffers writes and flushes them in the next loop iteration.

    uvicorn writes the head and the body of a response separately, which would cost two system
    calls. Flushing all connections together keeps the first reader that wakes up from taking the
    CPU while the remaining responses are built.
    """

    __slots__ = ("_flushes", "_transport", "_unsent")

    def __init__(self, transport: asyncio.Transport, flushes: TickQueue[BufferedTransport]) -> None:
        self._transport = transport
        self._flushes = flushes
        self._unsent: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffer `data` until the next iteration."""
        if not self._unsent:
            self._flushes.add(self)
        self._unsent.append(data)

    def close(self) -> None:
        """Flush, then close."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the transport is closed or closing."""
        return self._transport.is_closing()

    def flush(self) -> None:
        """Write the buffered data, unless the connection is closing."""
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))
