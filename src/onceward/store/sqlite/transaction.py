"""A handler's transaction on SQLite. It blocks every other writer, so it must be short."""

from __future__ import annotations

import asyncio
import functools
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from onceward.errors import (
    LeaseLost,
    NotSettled,
    StoreBlocked,
    TransactionIdleTimeout,
    TransactionMisuse,
)
from onceward.model.jobs import Fail
from onceward.model.versions import Watermark
from onceward.ports import OnIdleTimeout, Row, Rows
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.store.base import (
    ALTERED_ROWS,
    ENDED_BY_HANDLER,
    LEASE_LOST,
    error_parameters,
    read_watermark,
    require_mark,
    watermark_parameters,
)
from onceward.store.queries import Queries
from onceward.store.sqlite import connection_thread as thread
from onceward.store.sqlite.write_gate import WriteGate
from onceward.store.unsupported_values import unsupported_value

T = TypeVar("T")

IDLE_SECONDS: Final = 0.25
"""Total time for which a handler may hold the transaction without running a statement."""

TICK_SECONDS: Final = 0.05
"""Interval at which idle time is counted. A longer one is a blocked event loop: not idle time."""

STATEMENT_SECONDS: Final = 2.0
"""Timeout of one of its statements."""

_BINDING_ERRORS: Final = (sqlite3.ProgrammingError, sqlite3.InterfaceError, OverflowError)
"""Errors of parameters, among others. The class differs between versions of Python."""


class SqliteTransaction:
    """The write transaction, from BEGIN to its end."""

    def __init__(
        self,
        *,
        writer: thread.ConnectionThread,
        gate: WriteGate,
        boundaries: thread.Boundaries,
        queries: Queries,
        failpoints: Failpoints,
        now: Callable[[], int],
        location: Callable[[], str],
        on_idle_timeout: OnIdleTimeout,
    ) -> None:
        self._writer = writer
        self._gate = gate
        self._boundaries = boundaries
        self._queries = queries
        self._failpoints = failpoints
        self._now = now
        self._location = location
        self._on_idle_timeout = on_idle_timeout
        self._loop = asyncio.get_running_loop()
        self._idle_left = IDLE_SECONDS
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._idle_reason = ""

    async def begin(self) -> None:
        """Wait for the gate, then begin. Raise StoreUnavailable if the file is locked."""
        await self._gate.acquire()
        self._is_open = True
        await self.run_internal(self._boundaries.begin)

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of the handler."""

        def execute(connection: sqlite3.Connection) -> Rows:
            changes_before = connection.total_changes
            try:
                cursor = connection.execute(statement.text, parameters)
            except _BINDING_ERRORS as error:
                is_supported = functools.partial(_is_supported, connection)
                misuse = unsupported_value(statement, parameters, is_supported)
                if misuse is None:
                    raise
                raise misuse from error
            rows = thread.fetch(cursor)
            if not connection.in_transaction:
                raise TransactionMisuse(ENDED_BY_HANDLER)
            # sqlite3 sets rowcount only for statements that begin with INSERT, UPDATE or DELETE.
            count = max(len(rows), connection.total_changes - changes_before)
            return Rows(rows, count if cursor.rowcount < 0 else cursor.rowcount)

        return await self._call(execute)

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. Return True for the first job with this key, over all events."""
        is_first = bool(await self.run_named("mark_effect", job=job, key=key, reference=reference))
        if not is_first:
            marks = await self.run_named("marked_effect", key=key)
            require_mark(key, marks, table="onceward_effects")
            if marks[0]["is_untouched"]:
                await self.run_named("touch_effect", key=key)
        self._failpoints.reach("effect.written")
        return is_first

    async def lock_watermark(self, handler: str, key: str, new: Watermark) -> Watermark:
        """Return the watermark of a handler's key, or write `new` and return it."""
        parameters = watermark_parameters(handler, key, new)
        if rows := await self.run_named("lock_watermark", **parameters):
            return read_watermark(rows[0])
        if not await self.run_named("add_watermark", **parameters):
            raise StoreBlocked(ALTERED_ROWS.format(table="onceward_watermarks"))
        return new

    async def set_watermark(self, handler: str, key: str, new: Watermark) -> None:
        """Replace a locked watermark."""
        parameters = watermark_parameters(handler, key, new)
        rows = await self.run_named("set_watermark", **parameters)
        if [row["landed"] for row in rows] != [True]:
            raise StoreBlocked(ALTERED_ROWS.format(table="onceward_watermarks"))

    async def commit_done(self, leases: Mapping[str, Sequence[int]]) -> None:
        """Mark the jobs of leases as done, and commit. Raise LeaseLost or NotSettled."""
        self._failpoints.reach("settle.written")  # as after it: nothing is committed
        now = self._now()

        def settle(connection: sqlite3.Connection) -> None:
            for token, jobs in leases.items():
                parameters = {"token": token, "jobs": json.dumps(list(jobs)), "now": now}
                settled = thread.run(connection, self._queries("settle_done"), parameters)
                if len(settled) != len(jobs):
                    (row,) = thread.run(connection, self._queries("unsettled"), parameters)
                    if row["is_altered"]:
                        raise NotSettled(ALTERED_ROWS.format(table="onceward_jobs"))
                    raise LeaseLost(LEASE_LOST)

        def settle_and_commit(connection: sqlite3.Connection) -> None:
            try:
                settle(connection)
            except sqlite3.Error as error:
                raise thread.translate_error(error) from error
            self._boundaries.commit(connection)

        await self._end(settle_and_commit)

    async def settle_failed(
        self, token: str, job: int, failure: Fail, elapsed_seconds: float
    ) -> bool:
        """Mark a job as failed. Return False if its lease was lost, or it need not fail now."""
        values = error_parameters(token, job, failure, elapsed_seconds)
        rows = await self.run_named("settle_failed", **values)
        self._failpoints.reach("settle.written")
        return bool(rows)

    async def commit(self) -> None:
        """Commit. Raise OutcomeUnknown if the disk fails meanwhile."""
        await self._end(self._boundaries.commit)

    async def _end(self, commit: Callable[[sqlite3.Connection], None]) -> None:
        """Commit in the writer's thread, without a timeout, and let the next transaction begin."""
        await self._call(commit, timeout_seconds=None)
        self._stop_timer()
        self._is_open = False
        self._gate.release()
        self._failpoints.reach("settle.committed")

    async def rollback(self) -> None:
        """Roll back, unless the transaction has ended."""
        if self._is_open:
            self._stop_timer()
            await thread.shielded(self._start_rollback())

    async def run_named(self, name: str, /, *conditions: str, **parameters: object) -> list[Row]:
        """Run a named statement in the transaction. Raise StoreError."""
        statements = self._queries(name, *conditions)
        values = {**parameters, "now": self._now()}
        return await self.run_internal(
            lambda connection: thread.run(connection, statements, values)
        )

    async def run_internal(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run Onceward's own code, without a timeout. Raise StoreError."""
        try:
            return await self._call(function, timeout_seconds=None)
        except sqlite3.Error as error:
            raise thread.translate_error(error) from error

    async def _call(
        self,
        function: Callable[[sqlite3.Connection], T],
        timeout_seconds: float | None = STATEMENT_SECONDS,
    ) -> T:
        """Run a function in the writer's thread. Stop the idle timer meanwhile."""
        if self._idle_reason:
            raise TransactionIdleTimeout(self._idle_reason)
        if not self._is_open:
            raise TransactionMisuse("the transaction has ended; no statement can follow it")
        self._stop_timer()
        interrupt = (
            self._loop.call_later(timeout_seconds, self._writer.interrupt)
            if timeout_seconds
            else None
        )
        try:
            return await thread.shielded(self._writer.call(function))
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
            message = f"a statement ran for over {STATEMENT_SECONDS:g} s at {self._location()}"
            raise TransactionIdleTimeout(message) from error
        except asyncio.CancelledError:
            self._writer.interrupt()
            raise
        finally:
            if interrupt is not None:
                interrupt.cancel()
            if self._is_open:
                self._start_timer()

    def _start_timer(self) -> None:
        self._idle_since = self._loop.time()
        self._timer = self._loop.call_later(min(TICK_SECONDS, self._idle_left), self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._count_idle_time()

    def _count_idle_time(self) -> None:
        """Count the time since the last tick. Another task may have blocked the event loop since.

        The handler could not go on meanwhile, and must not be blamed.
        """
        idle = min(self._loop.time() - self._idle_since, TICK_SECONDS)
        self._idle_left = max(0.0, self._idle_left - idle)

    def _tick(self) -> None:
        self._count_idle_time()
        if self._idle_left:
            self._start_timer()
        else:
            self._expire()

    def _expire(self) -> None:
        """Roll back an idle transaction, which blocks every other writer."""
        self._idle_reason = (
            f"{self._location()}: waited over {IDLE_SECONDS * 1000:.0f} ms with SQLite's only "
            "write transaction open; it was rolled back. Make slow calls before the first tx or "
            "effects call"
        )
        self._timer = None
        self._start_rollback()
        self._on_idle_timeout(TransactionIdleTimeout(self._idle_reason))

    def _start_rollback(self) -> asyncio.Future[None]:
        self._is_open = False
        future = self._writer.call(thread.rollback)
        future.add_done_callback(lambda _: self._gate.release())
        return future


def _is_supported(connection: sqlite3.Connection, value: object) -> bool:
    try:
        connection.execute("SELECT ?", (value,))
    except _BINDING_ERRORS:
        return False
    return True
