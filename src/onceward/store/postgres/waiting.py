"""A psycopg connection that keeps its socket registered with the event loop.

psycopg registers the socket and a timer for every wait and removes both afterwards, which is a
third of the CPU time of a short statement. `FastWaitConnection` keeps both while it is in use. It
also sends Onceward's own messages without a cursor, and keeps psycopg from deallocating Onceward's
prepared statements together with its own.

Only this module relies on internals of psycopg. `psycopg_contract` checks each of them, and
`driver` returns this connection only for tested minor versions that keep the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import generators
from psycopg._preparing import PrepareManager
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait, wait_async

from onceward.errors import OutcomeUnknown
from onceward.store.postgres.session import (
    COMMIT,
    RESET,
    SessionConnection,
    TextRows,
    state_in,
    text_rows,
)

T = TypeVar("T")

_WRITABLE: Final = int(Wait.W)
_CANCEL_SECONDS: Final = 3.0
"""Time to ask the server to cancel a statement, and for the statement to end."""
_INTERVAL_SECONDS: Final = 0.1


class _PsycopgStatements(PrepareManager):
    """psycopg's prepared statements, which it deallocates one by one instead of all at once."""

    def clear(self) -> bool:
        """Forget all statements, and deallocate them later."""
        self._counts.clear()
        self._to_flush.extend(self._names.values())
        self._names.clear()
        return bool(self._to_flush)


def _rows(results: Iterable[PGresult]) -> list[TextRows]:
    return [text_rows(each) for each in results if each.status == ExecStatus.TUPLES_OK]


class FastWaitConnection(SessionConnection):
    """A connection that waits, sends and deallocates through psycopg's internals."""

    _deallocates_all = False
    _loop: asyncio.AbstractEventLoop | None = None
    _socket = -1
    _waiter: asyncio.Future[Ready] | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._prepared = _PsycopgStatements()

    async def exchange(self, message: bytes) -> list[TextRows]:
        """Run a message of several statements. Return the rows of those that have rows."""
        results = await self._results(message)
        self._raise_error(results)
        return _rows(results)

    async def commit_and_reset(self, *before: bytes) -> None:
        """Run statements, commit the transaction of a handler, and reset the session.

        All in one message: each further one costs as much as a short statement. An error of the
        reset closes the connection: the commit has succeeded.
        """
        results = await self._results(b"; ".join((*before, COMMIT, RESET)))
        if not any(result.command_status == b"COMMIT" for result in results):
            self._raise_error(results)
            raise OutcomeUnknown("the server reported neither a commit nor an error")
        has_failed = results[-1].status == ExecStatus.FATAL_ERROR
        await self._check_reset(None if has_failed else state_in(_rows(results)))

    async def reset_session(self, *, rolls_back: bool) -> None:
        """Undo what a handler changed in the session. Forget psycopg's plans after a rollback.

        They may be of tables that the handler created, or that others have altered.
        """
        if rolls_back:
            self._prepared.clear()
        await super().reset_session(rolls_back=rolls_back)

    async def _results(self, message: bytes) -> list[PGresult]:
        async with self.lock:
            self.pgconn.send_query(message)
            return await self.wait(generators.execute(self.pgconn))

    def _raise_error(self, results: Sequence[PGresult]) -> None:
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result, encoding=self.info.encoding)

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
