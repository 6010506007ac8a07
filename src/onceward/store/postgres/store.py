"""The store on PostgreSQL: for many receiving and working processes, on many machines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg.rows import args_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.model.events import Arrival, Receipt
from onceward.model.jobs import Claim, Fail, Job, Lease, Postpone, Retry
from onceward.ports import Row
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import parse
from onceward.settings import Settings
from onceward.store.base import (
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
from onceward.store.postgres.connections import (
    CONNECT_OPTIONS,
    LOST,
    Connection,
    DedicatedConnection,
    conninfo,
    is_hung_up,
    is_lost,
    run,
    run_at_once,
    translate_error,
)
from onceward.store.postgres.driver import connection_class
from onceward.store.postgres.recording import Recording
from onceward.store.postgres.transaction import PostgresTransaction
from onceward.store.queries import Queries

PARTITIONS_AHEAD_WEEKS: Final = 4

_DURABLE: Final = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}
# Plans are kept, because to make one takes as long as to run it. Made while the tables are small,
# they must do when these are large: none may read a whole table, or compare every row of a batch
# with every other.
_KEPT: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
# A bitmap would find rows in the order of their places, which change: two receivers that count the
# same events would deadlock. An index finds them in the order of their ids.
RECORDING: Final = _KEPT | {"enable_nestloop": "off", "enable_bitmapscan": "off"}
# A claim that is lost in a crash is only a lease lost.
CLAIMING: Final = _KEPT | {"synchronous_commit": "off"}
_MIGRATION_LOCK: Final = "SELECT pg_advisory_xact_lock(7136231, 2)"
_LOCK: Final = parse(_MIGRATION_LOCK)[0]
_MIGRATIONS_TABLE: Final = """
    CREATE SCHEMA IF NOT EXISTS onceward;
    CREATE TABLE IF NOT EXISTS onceward.migrations (
        number integer PRIMARY KEY,
        name text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""
# DISCARD ALL, but for the prepared statements: the driver goes on using them.
_RESET: Final = """
    SET SESSION AUTHORIZATION DEFAULT;
    RESET ALL;
    CLOSE ALL;
    UNLISTEN *;
    SELECT pg_advisory_unlock_all();
    DISCARD SEQUENCES;
    DISCARD TEMP
"""


class PostgresStore(BaseStore):
    """Everything in the schema ``onceward`` of one database."""

    max_writers = 2

    def __init__(self, settings: Settings, failpoints: Failpoints) -> None:
        super().__init__()
        self._settings = settings
        self._failpoints = failpoints
        self._queries = Queries("postgres")
        self._batch_writer = Recording(
            self._queries, self._source_ids, failpoints, row_limit=settings.delivery_rows
        )
        self._connection_class = connection_class(fast_wait=settings.driver_fast_wait)
        self.max_shared_transactions = settings.workers
        self._free_writers: asyncio.Queue[DedicatedConnection] = asyncio.Queue()
        self._writers = [self._dedicated(RECORDING) for _ in range(self.max_writers)]
        self._claiming = self._dedicated(CLAIMING)
        self._renewing = self._dedicated(CLAIMING)
        self._admin_connection = self._dedicated(_idle(settings.lease_seconds))
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            conninfo(settings.database_url, **_idle(settings.lease_seconds)),
            connection_class=self._connection_class,
            kwargs=CONNECT_OPTIONS,
            min_size=0,
            max_size=settings.workers + 2,
            open=False,
            name="onceward",
            timeout=settings.commit_timeout_seconds,
        )

    def _dedicated(self, session: Mapping[str, str]) -> DedicatedConnection:
        info = conninfo(self._settings.database_url, **session)
        return DedicatedConnection(info, self._connection_class)

    async def open(self, *, serving: bool) -> None:
        """Connect, check durability and the schema."""
        if serving:
            await self._check_durability()
        if self._settings.migrate_at_start and serving:
            await self.migrate()
        elif lacking := await self._lacking():
            names = ", ".join(f"{entry.number:04} {entry.name}" for entry in lacking)
            msg = f"The database lacks migrations ({names}). Run: onceward migrate"
            raise ConfigurationError(msg)
        for writer in self._writers:
            self._free_writers.put_nowait(writer)
        await self._pool.open()

    async def close(self) -> None:
        """Let go of every connection."""
        await self._pool.close()
        for dedicated in (
            *self._writers,
            self._claiming,
            self._renewing,
            self._admin_connection,
        ):
            await dedicated.close()

    def batch_group(self, arrival: Arrival) -> bool:
        """Whether it seems to repeat an event of the ledger, and is best written with such."""
        return self._batch_writer.batch_group(arrival)

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Write all of them durably, each event once; one answer each, in their order."""
        writer = await self._free_writers.get()
        try:
            async with writer.use() as connection:
                return await self._batch_writer.record(connection, arrivals)
        finally:
            self._free_writers.put_nowait(writer)

    async def _record_in(self, run: Run, arrivals: Sequence[Arrival]) -> list[Receipt]:
        return await self._batch_writer.record_in(run, arrivals)

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
        parameters = {
            "token": token,
            "worker": worker,
            "handlers": [self._handler_ids[name] for name in handlers],
            "limit": 1 if solo else limit,
            "solo": solo,
            "lease_seconds": lease_seconds,
            "tokens": list(ended),
            "error": WORKER_DIED,
            "delay_seconds": RESCUE_DELAY_SECONDS,
        }
        statements = [
            statement
            for name in ("reclaim_expired", "end_leases", "claim", "next_due")
            for statement in self._queries(name)
        ]
        async with self._claiming.use() as connection:
            *_, leased, (outlook,) = await run_at_once(connection, statements, parameters)
            self._failpoints.reach("claim.leased")
            jobs = await self._load(connection, leased[0]["jobs"]) if leased else ()
        return Claim(
            lease=Lease(token, jobs) if jobs else None,
            solo_waiting=outlook["solo_waiting"],
            next_due_seconds=outlook["next_due_seconds"],
        )

    async def _load(self, connection: Connection, ids: list[int]) -> tuple[Job, ...]:
        parameters = {"jobs": ids, "inline_bytes": INLINE_BODY_BYTES}
        cursor = connection.cursor(binary=True, row_factory=args_row(Job))
        await cursor.execute(self._queries.one("load_jobs").pyformat, parameters)
        return tuple(await cursor.fetchall())

    async def end_leases(self, tokens: Sequence[str]) -> None:
        """Forget leases of which every job is settled."""
        async with self._renewing.use() as connection:
            await run(connection, self._queries.one("end_leases"), {"tokens": list(tokens)})

    async def renew(self, tokens: Sequence[str], lease_seconds: float) -> set[str]:
        """Prolong leases; answers with those still held."""
        parameters = {"tokens": list(tokens), "lease_seconds": lease_seconds}
        async with self._renewing.use() as connection:
            rows = await run(connection, self._queries.one("renew"), parameters)
        return {row["token"] for row in rows}

    async def release(self, token: str, jobs: Sequence[int]) -> None:
        """Let go of jobs that were not started."""
        async with self._renewing.use() as connection:
            parameters = {"token": token, "jobs": list(jobs)}
            await run(connection, self._queries.one("release"), parameters)

    async def settle_error(
        self, token: str, job: int, settlement: Retry | Postpone | Fail, elapsed_seconds: float
    ) -> bool:
        """End an attempt that failed. False when the lease was lost."""
        parameters = error_parameters(token, job, settlement, elapsed_seconds)
        landed = await self._write(error_statement(settlement), parameters)
        self._failpoints.reach("settle.committed")
        return bool(landed)

    async def settle_done(self, token: str, *jobs: int) -> bool:
        """End attempts that wrote nothing. False when the lease was lost."""
        landed = await self._write("settle_done", {"token": token, "jobs": list(jobs)})
        self._failpoints.reach("settle.committed")
        return len(landed) == len(jobs)

    @asynccontextmanager
    async def begin(
        self, location: Callable[[], str], *, shared: bool = False
    ) -> AsyncIterator[PostgresTransaction]:
        """A transaction for a handler. What is not committed at its end is rolled back."""
        del location  # the database itself ends a transaction that idles past its lease
        async with self._borrow() as connection:
            session = PostgresTransaction(
                connection, self._queries, self._failpoints, shared=shared
            )
            await session.begin()
            try:
                yield session
            finally:
                await _tidy(connection, session)

    @asynccontextmanager
    async def prepare(self) -> AsyncIterator[PostgresTransaction]:
        """A transaction for the user's own tables, one process at a time."""
        async with self.begin(str) as session:
            await session.run(_LOCK, {})
            yield session

    async def announcements(self) -> AsyncGenerator[None, None]:
        """Yields when jobs may have become due, whoever made them."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    conninfo(self._settings.database_url), autocommit=True
                ) as connection:
                    await connection.execute("LISTEN onceward_jobs")
                    yield  # whatever was announced while nobody listened
                    async for _ in connection.notifies():
                        yield
            except LOST:
                await asyncio.sleep(1)

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; answers with what was applied."""
        applied = []
        async with self._admin_connection.use() as connection, connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '10s'")
            await connection.execute(_MIGRATION_LOCK)
            await connection.execute(_MIGRATIONS_TABLE)
            for migration in pending("postgres", await _applied(connection)):
                await connection.execute(migration.text.encode())
                await connection.execute(
                    "INSERT INTO onceward.migrations (number, name) VALUES (%s, %s)",
                    (migration.number, migration.name),
                )
                applied.append(f"{migration.number:04} {migration.name}")
        return applied

    async def maintenance(self) -> None:
        """Make the partitions of the coming weeks, so that no payload lacks one."""
        async with self._admin_connection.use() as connection, connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '2s'")
            await connection.execute(_MIGRATION_LOCK)
            await connection.execute(
                "SELECT onceward.make_payload_partitions(%s)", (PARTITIONS_AHEAD_WEEKS,)
            )

    async def _check_durability(self) -> None:
        async with self._admin_connection.use() as connection:
            cursor = await connection.execute(
                "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(_DURABLE),)
            )
            rows = await cursor.fetchall()
        weak = [
            f"PostgreSQL runs with {row['name']} = {row['setting']}"
            for row in rows
            if row["setting"] not in _DURABLE[row["name"]]
        ]
        refuse_weak(weak, allowed=self._settings.allow_weak_durability)

    async def _lacking(self) -> list[Migration]:
        async with self._admin_connection.use() as connection, connection.transaction():
            return pending("postgres", await _applied(connection))

    async def _read(
        self, name: str, given: Sequence[str], parameters: Mapping[str, Any]
    ) -> list[Row]:
        statement = self._queries.one(name, *given)
        async with self._borrow() as connection:
            try:
                # Planned with the values at hand, so that a filter finds its partial index.
                cursor = await connection.execute(statement.pyformat, parameters, prepare=False)
                return await cursor.fetchall()
            except psycopg.Error as error:
                raise translate_error(error, sent=False) from error

    async def _write(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        async with self._borrow() as connection:
            try:
                return await run(connection, self._queries.one(name), parameters)
            except psycopg.Error as error:
                if is_lost(error):
                    await connection.close()
                raise translate_error(error) from error

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Run]:
        async with self._admin_connection.use() as connection:
            async with connection.transaction():
                await connection.execute(_MIGRATION_LOCK)

                async def run_named(name: str, /, *given: str, **parameters: object) -> list[Row]:
                    return await run(connection, self._queries.one(name, *given), parameters)

                yield run_named
                self._failpoints.reach("operate.written")
            self._failpoints.reach("operate.committed")

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Connection]:
        connection = await self._take()
        for _ in range(self._pool.max_size):
            if not is_hung_up(connection):
                break
            await connection.close()
            await self._pool.putconn(connection)
            connection = await self._take()
        try:
            yield connection
        finally:
            await self._pool.putconn(connection)

    async def _take(self) -> Connection:
        try:
            return await self._pool.getconn()
        except (PoolTimeout, *LOST) as error:
            message = "no connection to PostgreSQL could be had in time"
            raise StoreUnavailable(message) from error


def _idle(seconds: float) -> dict[str, str]:
    """Have the server end a transaction, and its locks, when its process stands still."""
    return {"idle_in_transaction_session_timeout": str(int(seconds * 1000))}


async def _applied(connection: Connection) -> list[int]:
    cursor = await connection.execute("SELECT to_regclass('onceward.migrations') AS found")
    row = await cursor.fetchone()
    if row is None or row["found"] is None:
        return []
    cursor = await connection.execute("SELECT number FROM onceward.migrations")
    return [entry["number"] for entry in await cursor.fetchall()]


async def _tidy(connection: Connection, session: PostgresTransaction) -> None:
    """End what was not committed, and leave nothing of the handler in the connection."""
    try:
        await session.rollback()
        if session.leaks:
            await connection.execute(_RESET)
    except psycopg.Error:
        await connection.close()
    except BaseException:
        await connection.close()
        raise
