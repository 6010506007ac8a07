"""Connections to SQLite: a thread each, and one gate in front of the only writer."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from onceward.errors import OutcomeUnknown, StoreError, StoreUnavailable, Unwritable
from onceward.ports import Row
from onceward.runtime.sql_text import Sql

T = TypeVar("T")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ConnectionThread:
    """One connection in one thread, which does one thing after the other."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._tasks: queue.SimpleQueue[Callable[[sqlite3.Connection], None] | None] = (
            queue.SimpleQueue()
        )
        self._connection: sqlite3.Connection | None = None
        self._name = name
        self._thread: threading.Thread | None = None
        self._is_over = False

    async def start(self) -> None:
        """Open the connection, unless it is open; raises what sqlite3 raises."""
        if self._connection is not None:
            return
        self._is_over = False
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(
            target=self._work, args=(loop, opened), name=self._name, daemon=True
        )
        self._thread.start()
        await opened

    def call(self, act: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Have the thread do something; the future has what came of it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._is_over:
            future.set_exception(StoreUnavailable("the store is closed"))
            return future

        def task(connection: sqlite3.Connection) -> None:
            if future.cancelled():  # nobody waits for it any more
                return
            result: T | None = None
            problem: BaseException | None = None
            try:
                result = act(connection)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                problem = error
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(_resolve, future, result, problem)

        self._tasks.put(task)
        return future

    def interrupt(self) -> None:
        """Break off the statement that runs now."""
        if self._connection is not None:
            self._connection.interrupt()

    async def stop(self) -> None:
        """Finish what was asked for, then close the connection."""
        self._is_over = True
        if self._connection is None or self._thread is None:
            return
        self._tasks.put(None)
        await asyncio.to_thread(self._thread.join)
        self._connection = None

    def _work(self, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> None:
        problem: BaseException | None = None
        try:
            self._connection = self._connect()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            problem = error
        loop.call_soon_threadsafe(_resolve, opened, None, problem)
        if self._connection is None:
            return
        while (task := self._tasks.get()) is not None:
            task(self._connection)
        self._connection.close()


def _resolve(future: asyncio.Future[T], result: T | None, problem: BaseException | None) -> None:
    if future.cancelled():
        return
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(result)  # type: ignore[arg-type] # no problem: there is a result


async def shielded(future: asyncio.Future[T]) -> T:
    """What came of something that goes on to its end, also when nobody waits for it any more."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_look_at)
        raise


def _look_at(future: asyncio.Future[T]) -> None:
    """Take notice of an error: asyncio tells of those that nobody has seen."""
    if not future.cancelled():
        future.exception()


def in_transaction(
    act: Callable[[sqlite3.Connection], T],
) -> Callable[[sqlite3.Connection], T]:
    """Run `act` in a transaction of its own. Errors come out as StoreErrors."""

    def whole(connection: sqlite3.Connection) -> T:
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = act(connection)
        except sqlite3.Error as error:
            rollback(connection)
            raise translate_error(error) from error
        except BaseException:
            rollback(connection)
            raise
        commit(connection)
        return result

    return whole


def commit(connection: sqlite3.Connection) -> None:
    """Commit, or raise OutcomeUnknown: a failed sync may have written all the same."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        rollback(connection)
        raise OutcomeUnknown(str(error)) from error


def rollback(connection: sqlite3.Connection) -> None:
    """End an open transaction without a trace."""
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def translate_error(error: sqlite3.Error) -> StoreError:
    """Say what an error of the driver means for what was asked: nothing was written."""
    if isinstance(error, sqlite3.OperationalError | sqlite3.InterfaceError):
        return StoreUnavailable(str(error))
    return Unwritable(str(error))


def run(
    connection: sqlite3.Connection, statements: tuple[Sql, ...], parameters: Mapping[str, Any]
) -> list[Row]:
    """Run the statements of one name; the last one answers."""
    rows: list[Row] = []
    for statement in statements:
        rows = fetch(connection.execute(statement.text, parameters))
    return [{name: _decoded(name, value) for name, value in row.items()} for row in rows]


def fetch(cursor: sqlite3.Cursor) -> list[Row]:
    """All rows of a cursor, by column name."""
    if cursor.description is None:
        return []
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _decoded(name: str, value: Any) -> Any:
    if name.endswith("_at") and value is not None:
        return _EPOCH + timedelta(microseconds=value)
    return value
