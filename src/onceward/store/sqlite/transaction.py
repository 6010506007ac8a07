"""A handler's transaction on SQLite: the only writer, so it must be short."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from onceward.errors import LeaseLost, TransactionIdleTimeout, TransactionMisuse
from onceward.ports import Rows
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.store.base import ENDED_BY_HANDLER
from onceward.store.queries import Queries
from onceward.store.sqlite import connection_thread as link
from onceward.store.sqlite.write_gate import Gate

T = TypeVar("T")

IDLE_SECONDS: Final = 0.25
"""How long a handler may wait for other things while it holds the transaction, all in all."""

LATE_SECONDS: Final = 0.1

STATEMENT_SECONDS: Final = 2.0
"""How long one of its statements may run."""


class SqliteTransaction:
    """The write transaction, from BEGIN to its end. Everybody else waits meanwhile."""

    def __init__(
        self,
        *,
        thread: link.ConnectionThread,
        gate: Gate,
        queries: Queries,
        failpoints: Failpoints,
        now: Callable[[], int],
        location: Callable[[], str],
    ) -> None:
        self._thread = thread
        self._gate = gate
        self._queries = queries
        self._failpoints = failpoints
        self._now = now
        self._whereabouts = location
        self._loop = asyncio.get_running_loop()
        self._idle_left = IDLE_SECONDS
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._open = False
        self._held: TransactionIdleTimeout | None = None

    async def begin(self) -> None:
        """Wait for the gate, then start. Raises StoreUnavailable when the file is locked."""
        await self._gate.enter()
        self._open = True
        await self.run_internal(lambda connection: connection.execute("BEGIN IMMEDIATE"))

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of the handler."""

        def act(connection: sqlite3.Connection) -> Rows:
            before = connection.total_changes
            cursor = connection.execute(statement.text, parameters)
            rows = link.fetch(cursor)
            if not connection.in_transaction:
                raise TransactionMisuse(ENDED_BY_HANDLER)
            # The driver counts only what begins with INSERT, UPDATE or DELETE.
            counted = max(len(rows), connection.total_changes - before)
            return Rows(rows, counted if cursor.rowcount < 0 else cursor.rowcount)

        return await self._do(act)

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. True for the first, over all events."""
        rows = await self.named("effect_once", job=job, key=key, reference=reference)
        self._failpoints.reach("effect.written")
        return bool(rows)

    async def settle(self, token: str, *jobs: int) -> None:
        """Write the jobs' done. Raises LeaseLost."""
        settled = await self.named("settle_done", token=token, jobs=json.dumps(jobs))
        if len(settled) != len(jobs):
            message = "the lease ended before the job was settled; nothing was committed"
            raise LeaseLost(message)
        self._failpoints.reach("settle.written")

    async def commit(self) -> None:
        """Make all of it durable. Raises OutcomeUnknown when the disk fails meanwhile."""
        await self._do(link.commit)
        self._end()
        self._failpoints.reach("settle.committed")

    async def rollback(self) -> None:
        """End it without a trace. Harmless when it has ended."""
        if self._open:
            self._stop_timer()
            self._open = False
            future = self._thread.call(link.rollback)
            future.add_done_callback(lambda _: self._gate.leave())
            await link.shielded(future)

    async def named(self, name: str, /, *given: str, **parameters: object) -> list[dict[str, Any]]:
        """Run one of our own statements in the transaction. Raises StoreError."""
        statements = self._queries(name, *given)
        values = {**parameters, "now": self._now()}
        return await self.run_internal(lambda connection: link.run(connection, statements, values))

    async def run_internal(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Do what no handler wrote: it is not to blame when it takes long or fails."""
        try:
            return await self._do(act, limit_seconds=None)
        except sqlite3.Error as error:
            raise link.translate_error(error) from error

    async def _do(
        self,
        act: Callable[[sqlite3.Connection], T],
        limit_seconds: float | None = STATEMENT_SECONDS,
    ) -> T:
        """Have the writer do something, and watch the time before and after."""
        if self._held is not None:
            raise self._held
        if not self._open:
            message = "the transaction is over; what comes after it cannot be part of it"
            raise TransactionMisuse(message)
        self._stop_timer()
        interrupt = (
            self._loop.call_later(limit_seconds, self._thread.interrupt) if limit_seconds else None
        )
        try:
            return await link.shielded(self._thread.call(act))
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
            message = f"a statement ran for over {STATEMENT_SECONDS:g} s at {self._whereabouts()}"
            raise TransactionIdleTimeout(message) from error
        except asyncio.CancelledError:
            self._thread.interrupt()  # nobody waits for it any more
            raise
        finally:
            if interrupt is not None:
                interrupt.cancel()
            if self._open:
                self._idle_since = self._loop.time()
                self._timer = self._loop.call_later(self._idle_left, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._idle_left = max(0.0, self._idle_left - (self._loop.time() - self._idle_since))

    def _expire(self) -> None:
        late = self._loop.time() - self._idle_since - self._idle_left
        if late > LATE_SECONDS:  # the loop was blocked: it is not this handler that waited
            self._idle_since = self._loop.time()
            self._timer = self._loop.call_later(self._idle_left, self._expire)
            return
        self._held = TransactionIdleTimeout(
            f"held SQLite's only write transaction for over {IDLE_SECONDS * 1000:.0f} ms while it "
            f"waited at {self._whereabouts()}: wait first, then write"
        )
        self._open = False
        self._timer = None
        future = self._thread.call(link.rollback)
        future.add_done_callback(lambda _: self._gate.leave())

    def _end(self) -> None:
        self._stop_timer()
        self._open = False
        self._gate.leave()
