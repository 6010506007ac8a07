"""Pools of connections: each is lent to one task at a time, and dropped when in doubt.

A connection is given back or dropped without an await, so that no cancellation can lose it.
Decision 0016 has the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from onceward.errors import OutcomeUnknown, StoreBlocked, StoreUnavailable
from onceward.runtime.redact import one_line
from onceward.store.migrate import require_known
from onceward.store.postgres.connections import (
    NEWEST_MIGRATION,
    OPERATIONAL,
    OTHER_SESSION,
    READ_ONLY,
    Connection,
    is_closed_by_server,
    ledger_error,
)
from onceward.store.postgres.time_limit import shut_down, time_limit

OPEN_SECONDS: Final = 10.0
"""Time to open a connection, over all hosts in the URL."""

CHECK_SECONDS: Final = 1.5
"""Time for an idle connection to respond to a check."""

_STALL: Final = ": it is frozen or slow, or another transaction holds a lock"
_CHECK: Final = (
    f"SELECT current_setting('transaction_read_only') AS is_read_only, {NEWEST_MIGRATION} AS newest"
)


class ConnectionPool:
    """Up to `size` connections, opened when they are needed and kept until they are lost."""

    def __init__(
        self,
        open_connection: Callable[[], Awaitable[Connection]],
        *,
        size: int,
        wait_seconds: float,
        response_seconds: float,
    ) -> None:
        self._open_connection = open_connection
        self._size = size
        self._wait_seconds = wait_seconds
        self._response_seconds = response_seconds
        self._slots = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._lent: set[Connection] = set()
        self._use_starts: list[float] = []
        self._failure = ""
        """Why the last use failed, if it did."""
        self._is_closed = False

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """Lend a connection. Raise StoreUnavailable if there is none in time.

        A connection that does not come back idle is dropped: in a transaction, in a statement, or
        to a server that became a standby.
        """
        await self._take_slot()
        started = asyncio.get_running_loop().time()
        self._use_starts.append(started)
        connection: Connection | None = None
        try:
            connection = self._take_idle() or await self._open()
            self._lent.add(connection)
            yield connection
            self._failure = ""
        except psycopg.errors.ReadOnlySqlTransaction:
            if connection is not None:
                drop(connection)  # a new connection finds the new primary
            raise
        except OTHER_SESSION:
            if connection is not None:
                drop(connection)
            raise
        except (StoreUnavailable, *OPERATIONAL) as error:
            self._failure = one_line(str(error))
            raise
        finally:
            if connection is not None:
                self._give_back(connection)
            self._use_starts.remove(started)
            self._slots.release()

    @asynccontextmanager
    async def use_for_ledger(self, *, limited: bool = True) -> AsyncIterator[Connection]:
        """Lend a connection for statements of Onceward's own. Raise StoreError for every error."""
        seconds = self._response_seconds if limited else None
        try:
            async with self.use() as connection:
                with time_limit(connection, seconds):
                    yield connection
                    await connection.require_session()
                connection.require_confirmed()
        except psycopg.Error as error:
            raise ledger_error(error) from error

    async def check(self, stall_seconds: float) -> None:
        """Raise StoreUnavailable if a use takes over `stall_seconds`, or if none is possible.

        Raise NewerSchema if a newer version has migrated the database.
        Connections that are all in use, but not for long, work, unless the last use failed: they
        may be waiting for a database that still does not respond.
        """
        if self._use_starts:
            seconds = asyncio.get_running_loop().time() - min(self._use_starts)
            if seconds > stall_seconds:
                raise StoreUnavailable(f"PostgreSQL has not responded for {seconds:.1f} s{_STALL}")
        if len(self._use_starts) >= self._size:
            if self._failure:
                raise StoreUnavailable(self._failure)
            return
        async with self.use_for_ledger() as connection:
            with time_limit(connection, CHECK_SECONDS):
                cursor = await connection.execute(_CHECK)
            row = await cursor.fetchone()
            if row and row["is_read_only"] == "on":
                drop(connection)
                raise StoreBlocked(READ_ONLY)
            require_known("postgres", row["newest"] if row else None)

    def close(self) -> None:
        """Drop the idle connections, and end the statements of the others."""
        self._is_closed = True
        while self._idle:
            drop(self._idle.pop())
        for connection in self._lent:
            shut_down(connection)

    async def _take_slot(self) -> None:
        try:
            # Without a timer in the usual case: acquire() then returns at once.
            async with asyncio.timeout(self._wait_seconds if self._slots.locked() else None):
                await self._slots.acquire()
        except TimeoutError:
            text = f"all {self._size} connections" if self._size > 1 else "the connection"
            message = f"{text} to PostgreSQL stayed in use for {self._wait_seconds:g} s"
            raise StoreUnavailable(message) from None

    def _take_idle(self) -> Connection | None:
        """Return the connection that was used last, without those that the server has closed."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and not is_closed_by_server(connection):
                return connection
            drop(connection)
        return None

    async def _open(self) -> Connection:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return await self._open_connection()
        except TimeoutError:
            message = f"no connection to PostgreSQL within {OPEN_SECONDS:g} s"
            raise StoreUnavailable(message) from None

    def _give_back(self, connection: Connection) -> None:
        self._lent.discard(connection)
        with suppress(OutcomeUnknown):  # of a use that failed for another reason
            connection.require_confirmed()
        is_idle = connection.info.transaction_status is TransactionStatus.IDLE
        if is_idle and not self._is_closed:
            self._idle.append(connection)
        else:
            drop(connection)


def drop(connection: Connection) -> None:
    """Close a connection at once. psycopg's `close` is a coroutine that never suspends."""
    with suppress(StopIteration):
        connection.close().send(None)
