"""A connection whose socket stays with the event loop, so that a statement's wait costs little.

The driver's own registers the socket and a timer for each wait, and takes both away again: a third
of what a short statement costs the process. Here they stay for as long as the connection is in use.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait, wait_async

from onceward.ports import Row

T = TypeVar("T")

_WRITABLE: Final = int(Wait.W)
_CANCEL_SECONDS: Final = 5.0
_INTERVAL_SECONDS: Final = 0.1


class Connection(psycopg.AsyncConnection[Row]):
    """The driver's connection, with a wait of our own."""

    _loop: asyncio.AbstractEventLoop | None = None
    _socket = -1
    _waiter: asyncio.Future[int] | None = None
    _timer: asyncio.TimerHandle | None = None

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _INTERVAL_SECONDS,
        timeout: float | None = None,  # noqa: ASYNC109 - the driver's signature
    ) -> T:
        """Have the loop bring a generator of the driver to its end."""
        if timeout is not None:
            self._let_go()
            return await super().wait(gen, interval, timeout)
        try:
            state = next(gen)
            while True:
                state = gen.send(await self._ready(state))
        except StopIteration as end:
            result: T = end.value
            return result
        except asyncio.CancelledError:
            self._let_go()
            await self._break_off(gen)
            raise
        except BaseException:
            self._let_go()  # the driver may have closed the socket
            raise

    async def close(self) -> None:
        """Let go of the socket, and close it."""
        self._let_go()
        await super().close()

    async def _ready(self, state: Any) -> Any:
        """Wait until the socket is as the driver wants it; answers with what it is."""
        loop = self._loop or self._hold()
        waiter = self._waiter = loop.create_future()
        wants_to_write = state & _WRITABLE
        if wants_to_write:
            loop.add_writer(self._socket, self._wake, Ready.W)
        try:
            return await waiter
        finally:
            self._waiter = None
            if wants_to_write:
                loop.remove_writer(self._socket)

    def _wake(self, ready: Ready) -> None:
        if self._waiter is None:
            self._let_go()  # the server hung up, or had something to say that nobody waits for
        elif not self._waiter.done():
            self._waiter.set_result(ready)

    def _hold(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.get_running_loop()
        self._socket = self.pgconn.socket
        loop.add_reader(self._socket, self._wake, Ready.R)
        self._timer = loop.call_later(_INTERVAL_SECONDS, self._look, loop)
        return loop

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the driver look for itself: no loop tells of a connection that was reset."""
        if self._waiter is None:
            self._let_go()
        else:
            self._wake(Ready.R)
            self._timer = loop.call_later(_INTERVAL_SECONDS, self._look, loop)

    def _let_go(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _break_off(self, gen: PQGen[T]) -> None:
        """Have the server end a statement that nobody waits for any more."""
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        with suppress(psycopg.Error):
            await self.cancel_safe(timeout=_CANCEL_SECONDS)
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                with suppress(psycopg.Error):
                    await wait_async(gen, self.pgconn.socket, interval=_INTERVAL_SECONDS)
        except TimeoutError:
            self.pgconn.finish()  # nobody knows what it would answer next
