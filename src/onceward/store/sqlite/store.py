"""The store on SQLite: one file, one process, nothing to install."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar, cast

from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.model.events import Arrival, Outcome, Receipt
from onceward.model.jobs import Claim, Fail, Job, Lease, Postpone, Retry
from onceward.ports import Row
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.store.base import (
    HELD_AS_DUPLICATE_BODY,
    INLINE_BODY_BYTES,
    RESCUE_DELAY_SECONDS,
    WORKER_DIED,
    BaseStore,
    Run,
    error_parameters,
    error_statement,
    refuse_weak,
)
from onceward.store.migrate import Migration, pending
from onceward.store.queries import Queries
from onceward.store.recent_events import RecentEvents
from onceward.store.sqlite import connection_thread as link
from onceward.store.sqlite.transaction import SqliteTransaction
from onceward.store.sqlite.write_gate import Gate

T = TypeVar("T")

OLDEST_VERSION: Final = (3, 35, 0)
"""The first with RETURNING."""

BUSY_SECONDS: Final = 2.0
"""How long to wait for a lock that another process holds on the file."""

_DURABLE: Final = {"journal_mode": ("wal",), "synchronous": ("2", "3")}
_FOREVER: Final = 2**62
_MIGRATIONS_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS onceward_migrations (
        number INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    )
"""


class SqliteStore(BaseStore):
    """Everything in one file, in tables that begin with ``onceward_``."""

    max_writers = 1
    max_shared_transactions = 1

    def __init__(self, settings: Settings, failpoints: Failpoints, clock: Clock) -> None:
        super().__init__()
        self._settings = settings
        self._failpoints = failpoints
        self._clock = clock
        self._queries = Queries("sqlite")
        self._path, self._synchronous = _parse_url(settings.database_url)
        self._gate = Gate()
        self._writer = link.ConnectionThread("onceward-writer", self._connect)
        self._reader = link.ConnectionThread("onceward-reader", self._connect)
        self._lock_file: IO[str] | None = None
        self._announced = asyncio.Event()
        self._recent = RecentEvents()

    async def open(self, *, serving: bool) -> None:
        """Open the file, check durability and the schema."""
        if sqlite3.sqlite_version_info < OLDEST_VERSION:
            msg = f"SQLite {sqlite3.sqlite_version} is too old; 3.35 is the first that will do."
            raise ConfigurationError(msg)
        try:
            if serving:
                self._lock()
            await self._start(serving=serving)
        except BaseException:
            await self.close()
            raise

    async def _start(self, *, serving: bool) -> None:
        await self._start_thread(self._writer)
        await self._start_thread(self._reader)
        if serving:
            refuse_weak(
                await self._writer.call(_weak), allowed=self._settings.allow_weak_durability
            )
        if serving and self._settings.migrate_at_start:
            await self.migrate()
        elif lacking := await self._writer.call(_lacking):
            names = ", ".join(f"{entry.number:04} {entry.name}" for entry in lacking)
            msg = f"{self._path} lacks migrations ({names}). Run: onceward migrate"
            raise ConfigurationError(msg)
        if serving:
            # Only one process serves this file: whoever held a lease is dead.
            await self._write("reclaim_expired", **self._rescue(), expired_before=_FOREVER)

    async def _start_thread(self, thread: link.ConnectionThread) -> None:
        try:
            await thread.start()
        except sqlite3.Error as error:
            msg = f"SQLite cannot open {self._path}: {error}"
            raise StoreUnavailable(msg) from error

    async def close(self) -> None:
        """Finish what was asked for and let go of the file."""
        await self._writer.stop()
        await self._reader.stop()
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def batch_group(self, arrival: Arrival) -> bool:  # noqa: ARG002 - of the protocol
        """No: there is one writer, who writes both in one transaction."""
        return False

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Write all of them durably, each event once; one answer each, in their order."""
        now = self._now()
        known = [self._recent.event(arrival) for arrival in arrivals]

        def act(connection: sqlite3.Connection) -> list[Receipt]:
            return self._record(connection, arrivals, now, known)

        self._failpoints.reach("record.writing")
        receipts = await self._commit(act, receiver=True)
        self._failpoints.reach("record.committed")
        self._recent.note(arrivals, receipts)
        if any(receipt.outcome is Outcome.RECORDED for receipt in receipts):
            self._announced.set()
        return receipts

    def _record(
        self,
        connection: sqlite3.Connection,
        arrivals: Sequence[Arrival],
        now: int,
        known: Sequence[int | None],
    ) -> list[Receipt]:
        first = _take_ids(connection, len(arrivals))
        receipts = [
            self._record_one(connection, arrival, {"id": number, "now": now, "event": event})
            for number, (arrival, event) in enumerate(zip(arrivals, known, strict=True), first)
        ]
        self._failpoints.reach("record.written")
        return receipts

    def _record_one(
        self, connection: sqlite3.Connection, arrival: Arrival, values: Mapping[str, Any]
    ) -> Receipt:
        values = {**values, **self._values(arrival)}
        if values["event"] and link.run(connection, self._queries("record_known"), values):
            return Receipt(values["event"], Outcome.DUPLICATE)
        if rows := link.run(connection, self._queries("record_new", *_watched(arrival)), values):
            return Receipt(rows[0]["event"], Outcome.RECORDED)
        (row,) = link.run(connection, self._queries("record_again"), values)
        return Receipt(row["event"], Outcome(row["outcome"]))

    async def _record_in(self, run: Run, arrivals: Sequence[Arrival]) -> list[Receipt]:
        now = self._now()
        session = cast(_Run, run).session
        known = [None] * len(arrivals)
        return await session.run_internal(lambda it: self._record(it, arrivals, now, known))

    def _values(self, arrival: Arrival) -> dict[str, Any]:
        return {
            "source": self._source_ids[arrival.source],
            "event_id": arrival.event_id,
            "type": arrival.type,
            "reference": arrival.reference,
            "sha256": arrival.body_sha256,
            "headers": arrival.headers,
            "body": arrival.body,
            "row_limit": self._settings.delivery_rows,
            "rule": int(arrival.duplicate_body),
            "held": HELD_AS_DUPLICATE_BODY,
        }

    async def claim(
        self,
        *,
        token: str,
        worker: str,
        handlers: Sequence[str],
        limit: int,
        solo: bool,
        lease_seconds: float,
        ended: Sequence[str],
    ) -> Claim:
        """End the leases `ended`, rescue expired ones, and lease up to `limit` due jobs."""
        values = {
            **self._rescue(),
            "expired_before": self._now(),
            "token": token,
            "worker": worker,
            "handlers": json.dumps([self._handler_ids[name] for name in handlers]),
            "limit": 1 if solo else limit,
            "solo": solo,
            "lease_seconds": lease_seconds,
            "tokens": json.dumps(list(ended)),
            "inline_bytes": INLINE_BODY_BYTES,
        }

        def act(connection: sqlite3.Connection) -> Claim:
            link.run(connection, self._queries("reclaim_expired"), values)
            link.run(connection, self._queries("end_leases"), values)
            leased = link.run(connection, self._queries("claim"), values)
            (outlook,) = link.run(connection, self._queries("next_due"), values)
            ids = {"jobs": leased[0]["jobs"] if leased else "[]"}
            jobs = link.run(connection, self._queries("load_jobs"), {**values, **ids})
            return Claim(
                lease=Lease(token, tuple(Job(**row) for row in jobs)) if jobs else None,
                solo_waiting=bool(outlook["solo_waiting"]),
                next_due_seconds=outlook["next_due_seconds"],
            )

        claim = await self._commit(act)
        self._failpoints.reach("claim.leased")
        return claim

    def _rescue(self) -> dict[str, Any]:
        return {"now": self._now(), "error": WORKER_DIED, "delay_seconds": RESCUE_DELAY_SECONDS}

    async def end_leases(self, tokens: Sequence[str]) -> None:
        """Forget leases of which every job is settled."""
        await self._write("end_leases", tokens=json.dumps(list(tokens)))

    async def renew(self, tokens: Sequence[str], lease_seconds: float) -> set[str]:
        """Prolong leases; answers with those still held."""
        rows = await self._write(
            "renew", tokens=json.dumps(list(tokens)), lease_seconds=lease_seconds
        )
        return {row["token"] for row in rows}

    async def release(self, token: str, jobs: Sequence[int]) -> None:
        """Let go of jobs that were not started."""
        await self._write("release", token=token, jobs=json.dumps(list(jobs)))
        self._announced.set()

    async def settle_error(
        self, token: str, job: int, settlement: Retry | Postpone | Fail, elapsed_seconds: float
    ) -> bool:
        """End an attempt that failed. False when the lease was lost."""
        parameters = error_parameters(token, job, settlement, elapsed_seconds)
        landed = bool(await self._write(error_statement(settlement), **parameters))
        self._failpoints.reach("settle.committed")
        return landed

    async def settle_done(self, token: str, *jobs: int) -> bool:
        """End attempts that wrote nothing. False when the lease was lost."""
        landed = await self._write("settle_done", token=token, jobs=json.dumps(jobs))
        self._failpoints.reach("settle.committed")
        return len(landed) == len(jobs)

    @asynccontextmanager
    async def begin(
        self, location: Callable[[], str], *, shared: bool = False
    ) -> AsyncIterator[SqliteTransaction]:
        """A transaction for a handler. What is not committed at its end is rolled back."""
        del shared  # here a transaction never waits for another's locks
        session = SqliteTransaction(
            thread=self._writer,
            gate=self._gate,
            queries=self._queries,
            failpoints=self._failpoints,
            now=self._now,
            location=location,
        )
        try:
            await session.begin()
            yield session
        finally:
            await session.rollback()

    @asynccontextmanager
    async def prepare(self) -> AsyncIterator[SqliteTransaction]:
        """A transaction for the user's own tables."""
        async with self.begin(lambda: "at_start") as session:
            yield session

    async def announcements(self) -> AsyncGenerator[None, None]:
        """Yields when jobs may have become due."""
        while True:
            await self._announced.wait()
            self._announced.clear()
            yield

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; answers with what was applied."""
        await self._start_thread(self._writer)
        return [
            f"{migration.number:04} {migration.name}"
            for migration in await self._writer.call(_lacking)
            if await self._writer.call(functools.partial(_apply, migration))
        ]

    async def maintenance(self) -> None:
        """Nothing has to be done here."""

    async def _read(
        self, name: str, given: Sequence[str], parameters: Mapping[str, Any]
    ) -> list[Row]:
        statements = self._queries(name, *given)
        try:
            return await self._reader.call(
                lambda connection: link.run(connection, statements, parameters)
            )
        except sqlite3.Error as error:
            raise link.translate_error(error) from error

    async def _write(self, name: str, /, **parameters: object) -> list[Row]:
        statements = self._queries(name)
        values = {"now": self._now(), **parameters}
        return await self._commit(lambda connection: link.run(connection, statements, values))

    async def _commit(self, act: Callable[[sqlite3.Connection], T], *, receiver: bool = False) -> T:
        """Have the writer do something in a transaction, when it is our turn."""
        await self._gate.enter(receiver=receiver)
        future = self._writer.call(link.in_transaction(act))
        future.add_done_callback(lambda _: self._gate.leave())
        return await link.shielded(future)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Run]:
        async with self.begin(lambda: "a registration or an operator's act") as session:
            yield _Run(session)
            self._failpoints.reach("operate.written")
            await session.commit()
        self._failpoints.reach("operate.committed")
        self._announced.set()

    def _now(self) -> int:
        return int(self._clock.now() * 1_000_000)

    def _lock(self) -> None:
        path = Path(f"{self._path}.lock")
        try:
            self._lock_file = path.open("w")
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = (
                f"Another process serves {self._path}. SQLite carries one serving process: stop "
                f"that one, or move to PostgreSQL to run several (--database postgresql://…)."
            )
            raise ConfigurationError(msg) from error
        except OSError as error:
            msg = f"{path} cannot be written: {error.strerror}"
            raise ConfigurationError(msg) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=512
        )
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection


class _Run:
    """Runs named statements in a session."""

    def __init__(self, session: SqliteTransaction) -> None:
        self.session = session

    async def __call__(self, name: str, /, *given: str, **parameters: object) -> list[Row]:
        return await self.session.named(name, *given, **parameters)


def _parse_url(url: str) -> tuple[str, str]:
    path, _, options = url.removeprefix("sqlite:///").partition("?")
    synchronous = "FULL"
    for option in filter(None, options.split("&")):
        name, _, value = option.partition("=")
        if name != "synchronous" or value.upper() not in ("OFF", "NORMAL", "FULL", "EXTRA"):
            msg = f"{url}: {option!r} is not an option; there is synchronous=full|extra|normal|off"
            raise ConfigurationError(msg)
        synchronous = value.upper()
    if not path or path == ":memory:":
        msg = f"{url} names no file. Write sqlite:///name.db, or sqlite:////absolute/name.db"
        raise ConfigurationError(msg)
    return path, synchronous


def _weak(connection: sqlite3.Connection) -> list[str]:
    weak = []
    for name, good in _DURABLE.items():
        (value,) = connection.execute(f"PRAGMA {name}").fetchone()
        if str(value) not in good:
            weak.append(f"SQLite runs with {name} = {value}")
    return weak


def _lacking(connection: sqlite3.Connection) -> list[Migration]:
    known = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE name = 'onceward_migrations'"
    ).fetchone()
    applied = connection.execute("SELECT number FROM onceward_migrations") if known else ()
    return pending("sqlite", [number for (number,) in applied])


def _apply(migration: Migration, connection: sqlite3.Connection) -> bool:
    note = f"INSERT INTO onceward_migrations (number, name) VALUES ({migration.number}, '{migration.name}')"  # noqa: S608, E501 - our own file's name
    script = f"BEGIN IMMEDIATE; {_MIGRATIONS_TABLE}; {note}; {migration.text}; COMMIT"
    try:
        connection.executescript(script)
    except sqlite3.Error as error:
        link.rollback(connection)
        if isinstance(error, sqlite3.IntegrityError) and migration not in _lacking(connection):
            return False  # another process was faster
        raise link.translate_error(error) from error
    return True


def _watched(arrival: Arrival) -> list[str]:
    """What is asked of a statement, beyond the usual."""
    return ["duplicate_body"] if arrival.duplicate_body else []


def _take_ids(connection: sqlite3.Connection, count: int) -> int:
    row = connection.execute(
        "UPDATE onceward_counters SET value = value + ? WHERE name = 'ledger_ids' RETURNING value",
        (count,),
    ).fetchone()
    return int(row[0]) - count + 1
