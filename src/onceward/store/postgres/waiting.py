"""A psycopg connection that keeps its socket registered with the event loop.

psycopg registers the socket and a timer for every wait and removes both afterwards, which is a
third of the CPU time of a short statement. `FastWaitConnection` keeps both while it is in use.

Only this module relies on internals of psycopg, and `driver` loads it only for versions that it was
tested with. `tests/unit/test_psycopg_contract.py` checks each of the internals.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait, wait_async

from onceward.store.postgres.session import SessionConnection

T = TypeVar("T")

_WRITABLE: Final = int(Wait.W)
_CANCEL_SECONDS: Final = 3.0
"""Time to ask the server to cancel a statement, and for the statement to end."""
_INTERVAL_SECONDS: Final = 0.1


class FastWaitConnection(SessionConnection):
    """psycopg's connection with a cheaper `wait`."""

    _loop: asyncio.AbstractEventLoop | None = None
    _socket = -1
    _waiter: asyncio.Future[Ready] | None = None
    _timer: asyncio.TimerHandle | None = None

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _INTERVAL_SECONDS,
        timeout: float | None = None,  # noqa: ASYNC109 - psycopg's signature
    ) -> T:
        """Run a generator of psycopg to its end and return its result."""
        if timeout is not None:
            self._unregister_socket()
            return await super().wait(gen, interval, timeout)
        try:
            state = next(gen)
            while True:
                state = gen.send(await self._ready(state))
        except StopIteration as end:
            result: T = end.value
            return result
        except asyncio.CancelledError:
            self._unregister_socket()
            await self._cancel_statement(gen)
            raise
        except BaseException:
            self._unregister_socket()  # psycopg may have closed the socket
            raise

    async def close(self) -> None:
        """Unregister the socket and close the connection."""
        self._unregister_socket()
        await super().close()

    async def _ready(self, state: Any) -> Any:
        """Wait until the socket is readable, or writable if psycopg asks for that too."""
        loop = self._loop or self._register_socket()
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
            self._unregister_socket()  # the server closed the connection, or sent a notice
        elif not self._waiter.done():
            self._waiter.set_result(ready)

    def _register_socket(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.get_running_loop()
        self._socket = self.pgconn.socket
        loop.add_reader(self._socket, self._wake, Ready.R)
        self._timer = loop.call_later(_INTERVAL_SECONDS, self._poll, loop)
        return loop

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let psycopg check the socket: event loops do not report every reset connection."""
        if self._waiter is None:
            self._unregister_socket()
        else:
            self._wake(Ready.R)
            self._timer = loop.call_later(_INTERVAL_SECONDS, self._poll, loop)

    def _unregister_socket(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _cancel_statement(self, gen: PQGen[T]) -> None:
        """Cancel the running statement in the server and read its result.

        Close the connection if the server does not respond: its state is then unknown.
        """
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        try:
            async with asyncio.timeout(
                _CANCEL_SECONDS
            ):  # libpq before 17 has no timeout of its own
                with suppress(psycopg.Error):
                    await self.cancel_safe(timeout=_CANCEL_SECONDS)
                with suppress(psycopg.Error):
                    await wait_async(gen, self.pgconn.socket, interval=_INTERVAL_SECONDS)
        except TimeoutError:
            self.pgconn.finish()
