"""A thread with one connection to SQLite, and the functions that it runs."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from onceward.errors import OutcomeUnknown, StoreError, StoreUnavailable, Unwritable
from onceward.ports import Row
from onceward.runtime.sql_text import Sql
from onceward.runtime.time_units import from_epoch_microseconds
from onceward.store.sqlite.lock_watch import LOCKED, is_locked

T = TypeVar("T")


class ConnectionThread:
    """One connection in one thread, which runs one function at a time."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._tasks: queue.SimpleQueue[Callable[[sqlite3.Connection], None] | None] = (
            queue.SimpleQueue()
        )
        self._connection: sqlite3.Connection | None = None
        self._name = name
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    async def start(self) -> None:
        """Open the connection unless it is open. Raise sqlite3.Error."""
        if self._connection is not None:
            return
        self._is_stopped = False
        self._tasks = queue.SimpleQueue()
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(
            target=self._work, args=(loop, opened), name=self._name, daemon=True
        )
        self._thread.start()
        await opened

    def call(self, function: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run a function in the thread and return a future of its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._is_stopped:
            future.set_exception(StoreUnavailable("the store is closed"))
            return future

        def task(connection: sqlite3.Connection) -> None:
            if future.cancelled():
                return
            result: T | None = None
            failure: BaseException | None = None
            try:
                result = function(connection)
            except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                failure = error
            with suppress(RuntimeError):  # the loop is closed, and the future has no reader
                loop.call_soon_threadsafe(_resolve, future, result, failure)

        self._tasks.put(task)
        return future

    def interrupt(self) -> None:
        """Interrupt the running statement."""
        if self._connection is not None:
            self._connection.interrupt()

    async def stop(self) -> None:
        """Run the queued functions, then close the connection. Complete even if cancelled."""
        self._is_stopped = True
        if self._thread is None:
            return
        self._tasks.put(None)
        await completed(asyncio.create_task(asyncio.to_thread(self._thread.join)))
        self._thread = self._connection = None

    def abandon(self) -> None:
        """Run nothing more, and leave the connection open until the process ends.

        Closing it would delete the WAL by its name, which may now belong to another database.
        """
        self._is_stopped = True

    def _work(self, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> None:
        failure: BaseException | None = None
        try:
            self._connection = self._connect()
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve, opened, None, failure)
        if self._connection is None:
            return
        while (task := self._tasks.get()) is not None:
            task(self._connection)
        self._connection.close()


def _resolve(future: asyncio.Future[T], result: T | None, failure: BaseException | None) -> None:
    if future.cancelled():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)  # type: ignore[arg-type] # without a failure there is a result


async def shielded(future: asyncio.Future[T]) -> T:
    """Await a call that completes even if the caller is cancelled."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(_retrieve_error)
        raise


async def completed(future: asyncio.Future[T]) -> T:
    """Await a call to its end. A cancellation of the caller is raised only then."""
    cancellation: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        _retrieve_error(future)
        raise cancellation
    return future.result()


def _retrieve_error(future: asyncio.Future[T]) -> None:
    """Mark an error as seen: asyncio logs errors that were never retrieved."""
    if not future.cancelled():
        future.exception()


@dataclass(frozen=True, slots=True)
class Boundaries:
    """How write transactions begin and commit."""

    begin: Callable[[sqlite3.Connection], None]
    commit: Callable[[sqlite3.Connection], None]


def in_transaction(
    boundaries: Boundaries, function: Callable[[sqlite3.Connection], T]
) -> Callable[[sqlite3.Connection], T]:
    """Wrap a function in a transaction. The wrapper raises StoreError."""

    def transaction(connection: sqlite3.Connection) -> T:
        try:
            boundaries.begin(connection)
            result = function(connection)
        except sqlite3.Error as error:
            rollback(connection)
            raise translate_error(error) from error
        except BaseException:
            rollback(connection)
            raise
        boundaries.commit(connection)
        return result

    return transaction


def commit(connection: sqlite3.Connection) -> None:
    """Commit. Raise OutcomeUnknown on failure: a failed sync may still have written."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        rollback(connection)
        raise OutcomeUnknown(str(error)) from error


def rollback(connection: sqlite3.Connection) -> None:
    """Roll back the open transaction, if there is one."""
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def translate_error(error: sqlite3.Error) -> StoreError:
    """Return the StoreError for an error before the commit: nothing was written."""
    if isinstance(error, sqlite3.OperationalError | sqlite3.InterfaceError):
        return StoreUnavailable(error_reason(error))
    return Unwritable(str(error))


def error_reason(error: sqlite3.Error) -> str:
    """Return the text of an error; of a locked file, with what to do about it."""
    return LOCKED if is_locked(error) else str(error)


def run(
    connection: sqlite3.Connection, statements: tuple[Sql, ...], parameters: Mapping[str, Any]
) -> list[Row]:
    """Run the statements of one name and return the rows of the last one."""
    rows: list[Row] = []
    for statement in statements:
        rows = fetch(connection.execute(statement.text, parameters))
    return [{name: _decoded(name, value) for name, value in row.items()} for row in rows]


def fetch(cursor: sqlite3.Cursor) -> list[Row]:
    """Return all rows of a cursor, by column name."""
    if cursor.description is None:
        return []
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _decoded(name: str, value: Any) -> Any:
    if name.endswith("_at") and value is not None:
        return from_epoch_microseconds(value)
    return value
