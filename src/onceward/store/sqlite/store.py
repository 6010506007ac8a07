"""The store on SQLite: one file, one process, nothing to install."""

from __future__ import annotations

import asyncio
import functools
import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from onceward.errors import ConfigurationError, NotSettled, StoreUnavailable
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.model.jobs import Claim, ClaimRequest, Job, Renewal
from onceward.model.workers import HEALTHY, WorkerHealth
from onceward.ports import (
    EVERY_DUTY,
    BatchGroup,
    Duty,
    ErrorSettlement,
    LockedEvents,
    OnIdleTimeout,
    Row,
    ignore_idle_timeout,
)
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.store.admin import SqlAdminStore
from onceward.store.archives import SqlArchives
from onceward.store.base import (
    ALTERED_ROWS,
    LedgerTransaction,
    error_parameters,
    error_statement,
    require_durability,
)
from onceward.store.effect_calls import SqlEffectCalls
from onceward.store.inline import SqlInlineLedger
from onceward.store.locks import Lock
from onceward.store.migrate import (
    Migration,
    check_applied,
    pending,
    require_known,
    require_none_pending,
)
from onceward.store.queries import Queries
from onceward.store.recent_events import RecentEvents
from onceward.store.registry import SqlRegistry, worker_parameters
from onceward.store.sqlite import connection_thread as thread
from onceward.store.sqlite import schema
from onceward.store.sqlite.address import parse_url
from onceward.store.sqlite.claiming import Claims
from onceward.store.sqlite.database_file import DatabaseFile, configure
from onceward.store.sqlite.file_lock import FileLock
from onceward.store.sqlite.inline import SqliteInlineTransaction
from onceward.store.sqlite.lock_watch import LockWatch
from onceward.store.sqlite.maintenance import SqliteMaintenance
from onceward.store.sqlite.recording import BatchWriter
from onceward.store.sqlite.transaction import SqliteTransaction
from onceward.store.sqlite.write_gate import WriteGate

T = TypeVar("T")

LOWEST_VERSION: Final = (3, 35, 0)
"""The first version with RETURNING."""

BUSY_SECONDS: Final = 2.0
"""Timeout for a lock that another process holds on the file."""

_DURABLE: Final = {"journal_mode": ("wal",), "synchronous": ("2", "3")}


class SqliteStore(
    SqlAdminStore, SqlEffectCalls, SqlRegistry, SqlInlineLedger, SqlArchives, SqliteMaintenance
):
    """A store in one file, in tables whose names begin with ``onceward_``."""

    max_writers = 1
    max_shared_transactions = 1

    def __init__(self, settings: Settings, failpoints: Failpoints, clock: Clock) -> None:
        super().__init__()
        self._settings = settings
        self._failpoints = failpoints
        self._clock = clock
        self._queries = Queries("sqlite")
        self._batch_writer = BatchWriter(
            self._queries, self._source_ids, failpoints, row_limit=settings.delivery_rows
        )
        path, self._synchronous = parse_url(settings.database_url)
        self._file = DatabaseFile(path)
        self._file_lock = FileLock(self._file)
        self._lost = asyncio.Event()
        self._gate = WriteGate()
        self._lock_watch = LockWatch()
        self._boundaries = thread.Boundaries(self._begin, self._commit_and_check)
        self._writer = thread.ConnectionThread("onceward-writer", self._connect)
        self._reader = thread.ConnectionThread("onceward-reader", self._connect)
        self._claims = Claims(self._queries, settings)
        self._announced = asyncio.Event()
        self._recent = RecentEvents()

    async def open(self, *, serving: bool, duties: Duty = EVERY_DUTY) -> None:
        """Open the file and check the schema; if `serving`, check durability and migrate first."""
        del duties  # a file has no privileges for each
        try:
            _check_version()
            if serving:
                self._file.prepare()
                self._file.warn_if_readable()
                self._file_lock.acquire()
            else:
                self._file.require_existing()
            await self._start(serving=serving)
        except BaseException:
            await self.close()
            raise

    async def _start(self, *, serving: bool) -> None:
        await self._start_thread(self._writer)
        await self._start_thread(self._reader)
        await self._writer.call(schema.create_work_tables)
        if serving:
            require_durability(
                await self._writer.call(_weak_settings),
                allow_weak=self._settings.allow_weak_durability,
            )
        if serving and self._settings.migrate_at_start:
            await self.migrate()
        else:
            require_none_pending(self._file.given, await self._pending_migrations())
        self._watch_files(serving=serving)
        if serving:
            # Only one process serves the file, so every lease is a dead worker's.
            now = self._now()
            await self._commit(lambda connection: self._claims.reclaim_all(connection, now))

    async def _start_thread(self, connection_thread: thread.ConnectionThread) -> None:
        try:
            await connection_thread.start()
        except sqlite3.Error as error:
            raise StoreUnavailable(_cannot_open(self._file.given, error)) from error

    def _watch_files(self, *, serving: bool) -> None:
        loop = asyncio.get_running_loop()

        def set_lost() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._lost.set)

        self._file.on_lost = set_lost
        self._file.watch(*([self._file_lock.path] if serving else ()))

    async def wait_until_lost(self) -> NoReturn:
        """Wait until the file is deleted or replaced, then raise LedgerReplaced."""
        await self._lost.wait()
        self._file.check()
        raise AssertionError("unreachable: a lost file stays lost")

    async def close(self) -> None:
        """Finish the queued calls and close the file."""
        try:
            await self._stop_thread(self._writer)
        finally:
            try:
                await self._stop_thread(self._reader)
            finally:
                self._file_lock.release()

    async def _stop_thread(self, connection_thread: thread.ConnectionThread) -> None:
        if self._file.is_lost:
            connection_thread.abandon()
        else:
            await connection_thread.stop()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return a warning while the lock of another connection stops every write."""
        return self._lock_watch.warnings

    def batch_group(self, arrival: Arrival) -> BatchGroup:  # noqa: ARG002 - the port's signature
        """Return the same group for all: the only writer puts them in one transaction."""
        return BatchGroup.NEW

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Record deliveries durably, each event once; return a receipt for each, in order."""
        now = self._now()
        originals = [self._recent.find_original(arrival) for arrival in arrivals]

        def write(connection: sqlite3.Connection) -> list[Receipt]:
            return self._batch_writer.record(connection, arrivals, originals, now)

        self._failpoints.reach("record.writing")
        receipts = await self._commit(write, receiver=True)
        self._failpoints.reach("record.committed")
        self._recent.add(arrivals, receipts)
        if any(receipt.outcome is Outcome.RECORDED for receipt in receipts):
            self._announced.set()
        return receipts

    async def ready(self) -> None:
        """Raise StoreError unless events can be recorded now."""
        (row,) = await self._read("newest_migration")
        require_known("sqlite", row["number"])

    async def filters_for(self, job: Job) -> list[str]:  # noqa: ARG002 - of the port
        """Return nothing: no other process, of another version, serves the file."""
        return []

    async def claim(self, request: ClaimRequest) -> Claim:
        """Lease due jobs. End the leases that are over first, and reclaim lost ones if asked to."""
        now = self._now()
        claim = await self._commit(
            lambda connection: self._claims.claim(connection, request, self._handler_ids, now)
        )
        self._failpoints.reach("claim.leased")
        return claim

    async def end_leases(self, tokens: Sequence[str], settled: Sequence[int] = ()) -> None:
        """Delete leases whose jobs are all settled, and wake the next jobs of the settled keys."""
        now = self._now()
        await self._commit(lambda connection: self._claims.end(connection, tokens, settled, now))

    async def renew(
        self,
        tokens: Sequence[str],
        lease_seconds: float,
        *,
        owner: int = 0,
        unfinished: Sequence[int] = (),
    ) -> Renewal:
        """Extend leases. Return those still held, and the `unfinished` jobs that were cancelled."""
        del owner  # only one process works on the file
        (row,) = await self._write(
            "renew",
            tokens=json.dumps(list(tokens)),
            lease_seconds=lease_seconds,
            jobs=json.dumps(list(unfinished)),
        )
        held, cancelled = json.loads(row["held"]), json.loads(row["cancelled"])
        return Renewal(frozenset(held), frozenset(cancelled))

    async def release(self, token: str, jobs: Sequence[int]) -> None:
        """Release jobs that were not started."""
        await self._write("release", token=token, jobs=json.dumps(list(jobs)))
        self._announced.set()

    async def settle_error(
        self, token: str, job: int, settlement: ErrorSettlement, elapsed_seconds: float
    ) -> bool:
        """Settle an attempt that is not done. Return False if the lease was lost."""
        parameters = error_parameters(token, job, settlement, elapsed_seconds)
        landed = bool(await self._write(error_statement(settlement), **parameters))
        self._failpoints.reach("settle.committed")
        return landed

    async def settle_done(self, token: str, *jobs: int) -> bool:
        """Settle attempts that wrote nothing. Return False if the lease was lost.

        Raise NotSettled.
        """
        parameters = {"token": token, "jobs": json.dumps(jobs)}
        landed = await self._write("settle_done", **parameters)
        self._failpoints.reach("settle.committed")
        if len(landed) == len(jobs):
            return True
        (row,) = await self._read("unsettled", **parameters)
        if row["is_altered"]:
            raise NotSettled(ALTERED_ROWS.format(table="onceward_jobs"))
        return False

    async def _commit_call(self, name: str, /, **parameters: object) -> list[Row]:
        return await self._write(name, **parameters)

    @asynccontextmanager
    async def begin(
        self,
        location: Callable[[], str],
        on_idle_timeout: OnIdleTimeout = ignore_idle_timeout,
        *,
        shared: bool = False,
    ) -> AsyncIterator[SqliteTransaction]:
        """Open a transaction for a handler; roll it back at the end unless it is committed."""
        del shared  # a transaction here never waits for another's locks
        transaction = SqliteTransaction(
            writer=self._writer,
            gate=self._gate,
            boundaries=self._boundaries,
            queries=self._queries,
            failpoints=self._failpoints,
            now=self._now,
            location=location,
            on_idle_timeout=on_idle_timeout,
        )
        try:
            await transaction.begin()
            yield transaction
        finally:
            await transaction.rollback()

    @asynccontextmanager
    async def lock_events(self, arrivals: Sequence[Arrival]) -> AsyncIterator[LockedEvents]:
        """Return the events of a request: the locks of the only process are enough."""
        await self.ready()  # before a handler runs
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        yield LockedEvents(await self.look(arrivals), now, self._begin_inline)
        self._announced.set()

    @asynccontextmanager
    async def _begin_inline(
        self, location: Callable[[], str], on_idle_timeout: OnIdleTimeout
    ) -> AsyncIterator[SqliteInlineTransaction]:
        async with self.begin(location, on_idle_timeout) as transaction:
            ledger = _SqliteLedgerTransaction(transaction, self._batch_writer, self._now)
            yield SqliteInlineTransaction(transaction, ledger, self._source_ids, self._failpoints)

    def _recording_failures(self) -> AbstractAsyncContextManager[LedgerTransaction]:
        return self._transaction(Lock.LEDGER)

    @asynccontextmanager
    async def prepare(self) -> AsyncIterator[SqliteTransaction]:
        """Open a transaction for the app's own tables."""
        async with self.begin(lambda: "at_start") as transaction:
            yield transaction

    async def announcements(self) -> AsyncGenerator[None, None]:
        """Yield whenever jobs may have become due."""
        while True:
            await self._announced.wait()
            self._announced.clear()
            yield

    async def presence(self) -> AsyncGenerator[int, None]:
        """Yield 0: leases that are left over when the file is opened are a dead worker's."""
        yield 0
        await asyncio.Event().wait()

    async def renew_worker(
        self,
        worker: str,
        handlers: Sequence[str],
        health: WorkerHealth = HEALTHY,
        *,
        is_start: bool,
    ) -> None:
        """Store that a worker is alive, with its handlers. `is_start` sets when it started."""
        parameters = worker_parameters(worker, handlers, health, is_start=is_start)
        await self._write("renew_worker", **parameters)

    async def remove_worker(self, worker: str) -> None:
        """Delete the row of a worker that stopped."""
        await self._write("remove_worker", name=worker)

    async def migrate(self) -> list[str]:
        """Apply pending migrations and return their labels."""
        _check_version()
        await self._start_thread(self._writer)
        return [
            migration.label
            for migration in await self._pending_migrations()
            if await self._writer.call(functools.partial(schema.apply, migration, self._file.given))
        ]

    async def _pending_migrations(self) -> list[Migration]:
        applied = await self._writer.call(schema.load_applied)
        check_applied("sqlite", applied)
        return pending("sqlite", applied)

    async def _read(self, name: str, /, *conditions: str, **parameters: object) -> list[Row]:
        statements = self._queries(name, *conditions)
        values = {"now": self._now(), **parameters}

        def read(connection: sqlite3.Connection) -> list[Row]:
            rows = thread.run(connection, statements, values)
            self._file.check()
            return rows

        try:
            return await self._reader.call(read)
        except sqlite3.Error as error:
            raise thread.translate_error(error) from error

    async def _write(self, name: str, /, **parameters: object) -> list[Row]:
        statements = self._queries(name)
        values = {"now": self._now(), **parameters}
        return await self._commit(lambda connection: thread.run(connection, statements, values))

    async def _commit(
        self, function: Callable[[sqlite3.Connection], T], *, receiver: bool = False
    ) -> T:
        """Wait for the gate, then run a function in a transaction of the writer."""
        await self._gate.acquire(receiver=receiver)
        future = self._writer.call(thread.in_transaction(self._boundaries, function))
        future.add_done_callback(lambda _: self._gate.release())
        return await thread.shielded(future)

    @asynccontextmanager
    async def _transaction(self, lock: Lock) -> AsyncIterator[LedgerTransaction]:
        del lock  # the gate excludes every other transaction
        async with self.begin(lambda: "a registration or an operator's action") as transaction:
            await transaction.run_internal(schema.require_known_schema)
            yield _SqliteLedgerTransaction(transaction, self._batch_writer, self._now)
            self._failpoints.reach("operate.written")
            await transaction.commit()
        self._failpoints.reach("operate.committed")
        self._announced.set()

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._file.check()
        self._lock_watch.begin(connection)

    def _commit_and_check(self, connection: sqlite3.Connection) -> None:
        """Commit, and raise LedgerReplaced if the commit went into a file that nobody will find."""
        thread.commit(connection)
        self._file.check()

    def _now(self) -> int:
        return int(self._clock.now() * 1_000_000)

    def _connect(self) -> sqlite3.Connection:
        self._file.prepare()
        connection = sqlite3.connect(
            self._file.path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=512
        )
        try:
            configure(connection, self._synchronous)
        except BaseException:
            connection.close()
            raise
        return connection


class _SqliteLedgerTransaction:
    def __init__(
        self, transaction: SqliteTransaction, batch_writer: BatchWriter, now: Callable[[], int]
    ) -> None:
        self._batch_writer = batch_writer
        self._now = now
        self._transaction = transaction
        self.run = transaction.run_named

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Record deliveries as part of the transaction."""
        originals = [None] * len(arrivals)
        now = self._now()
        return await self._transaction.run_internal(
            lambda connection: self._batch_writer.record(connection, arrivals, originals, now)
        )


def _check_version() -> None:
    if sqlite3.sqlite_version_info < LOWEST_VERSION:
        lowest = ".".join(map(str, LOWEST_VERSION))
        msg = (
            f"Python's SQLite is {sqlite3.sqlite_version}; Onceward needs {lowest} or newer. "
            f"Use a newer build of Python, or PostgreSQL (--database postgresql://…)."
        )
        raise ConfigurationError(msg)


def _cannot_open(path: str, error: sqlite3.Error) -> str:
    reason = "it is a folder" if Path(path).is_dir() else thread.error_reason(error)
    return f"SQLite cannot open {path}: {reason}"


def _weak_settings(connection: sqlite3.Connection) -> list[str]:
    weak = []
    for name, durable_values in _DURABLE.items():
        (value,) = connection.execute(f"PRAGMA {name}").fetchone()
        if str(value) not in durable_values:
            weak.append(f"SQLite runs with {name} = {value}")
    return weak
