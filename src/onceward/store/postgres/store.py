"""The store on PostgreSQL: for many receiving and working processes, on many machines."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import args_row

from onceward.errors import NotSettled, StoreBlocked, StoreUnavailable
from onceward.model.events import Arrival, Receipt
from onceward.model.jobs import Claim, ClaimRequest, Job, Lease, Renewal
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
from onceward.ports.id_cache import IdCache
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.redact import redact_url
from onceward.runtime.sql_text import parse
from onceward.settings import Settings
from onceward.store.admin import SqlAdminStore
from onceward.store.archives import SqlArchives
from onceward.store.base import (
    ALTERED_ROWS,
    LedgerTransaction,
    error_parameters,
    error_statement,
    inline_body_bytes,
    require_durability,
)
from onceward.store.effect_calls import SqlEffectCalls
from onceward.store.inline import SqlInlineLedger
from onceward.store.locks import Lock
from onceward.store.postgres import schema
from onceward.store.postgres.announcer import Announcer
from onceward.store.postgres.claiming import Claims
from onceward.store.postgres.connections import (
    Connection,
    connect,
    conninfo,
    lock_statement,
    run,
    translate_error,
)
from onceward.store.postgres.driver import connection_class
from onceward.store.postgres.durability import require_keys, weak_settings
from onceward.store.postgres.inline import InlineTransactions
from onceward.store.postgres.ledger_transaction import PostgresLedgerTransaction
from onceward.store.postgres.listener import listen
from onceward.store.postgres.lock_timeout import SETUP_TIMEOUT_SECONDS, held_too_long, take_lock
from onceward.store.postgres.maintenance import PostgresMaintenance
from onceward.store.postgres.payload_weeks import within_weeks
from onceward.store.postgres.plan_settings import CLAIMING, KEEP_PLANS, RECORDING, SETTLING
from onceward.store.postgres.pool import ConnectionPool, drop
from onceward.store.postgres.presence import keep_presence
from onceward.store.postgres.recording import BatchWriter
from onceward.store.postgres.session import (
    Session,
    SessionConnection,
    require_own_backends,
)
from onceward.store.postgres.time_limit import OWN_LIMITS, RESPONSE_SECONDS, time_limit
from onceward.store.postgres.transaction import PostgresTransaction, PreparedStatements
from onceward.store.queries import Queries
from onceward.store.registry import SqlRegistry, worker_parameters

ADMIN_SECONDS: Final = 30.0
"""Time for a registration, an operator's action or a part of a purge."""

CALL_CONNECTIONS: Final = 2
"""Connections for the intents and outcomes of outside calls: handlers may have all the others."""

LIST_CONNECTIONS: Final = 2
SETTLING_CONNECTIONS: Final = 2
"""Connections for the ends of jobs that have no transaction."""

_POOL_EXHAUSTED: Final = (
    "The pooler gave no second connection: raise its pool size (pgbouncer: default_pool_size) to "
    "the number of connections in docs/operating.md"
)
_LOCK_SETUP: Final = parse(
    f"SET LOCAL lock_timeout = '{SETUP_TIMEOUT_SECONDS}s'; {lock_statement(Lock.SETUP)}; "
    "SET LOCAL lock_timeout TO DEFAULT"
)


class PostgresStore(
    SqlAdminStore, SqlEffectCalls, SqlRegistry, SqlInlineLedger, SqlArchives, PostgresMaintenance
):
    """A store in the schema ``onceward`` of one database."""

    max_writers = 2

    def __init__(
        self, settings: Settings, failpoints: Failpoints, id_cache: IdCache | None = None
    ) -> None:
        super().__init__()
        self._settings = settings
        self._failpoints = failpoints
        self._queries = Queries("postgres")
        self._prepared = PreparedStatements(self._queries)
        self._announcer = Announcer(self._notify)
        self._batch_writer = BatchWriter(
            self._queries,
            self._source_ids,
            self._payload_routes,
            failpoints,
            row_limit=settings.delivery_rows,
            on_jobs=self._announcer.announce,
            id_cache=id_cache,
        )
        self._routes_files: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
        """The file of the routes in which everything was registered, for each connection."""
        self.max_shared_transactions = settings.workers
        self._connection_class = connection_class(fast_wait=settings.driver_fast_wait)
        self._info = conninfo(settings.database_url)
        # Ends an idle transaction, and its locks, if its process freezes.
        idle = _timeout("idle_in_transaction_session_timeout", settings.lease_seconds)
        self._writers = self._pool(OWN_LIMITS | RECORDING, size=self.max_writers)
        self._claiming = self._pool(OWN_LIMITS | CLAIMING)
        self._claims = Claims(self._queries, settings)
        self._renewals = self._pool(OWN_LIMITS | CLAIMING)
        self._calls = self._pool(OWN_LIMITS | KEEP_PLANS, size=CALL_CONNECTIONS)
        self._notifications = self._pool(OWN_LIMITS | CLAIMING)
        # A migration takes as long as it takes: this session has no statement_timeout.
        self._admin = self._pool(idle, response_seconds=ADMIN_SECONDS)
        # So does a partition that takes the rows of the default one.
        self._election_session, self._maintenance_pool = self._pool({}), self._pool(idle)
        waiting = functools.partial(self._pool, wait_seconds=settings.commit_timeout_seconds)
        self._transactions = waiting(idle, size=settings.workers + 2, keeps_role_settings=True)
        self._lists = waiting(idle, size=LIST_CONNECTIONS)
        self._settling = waiting(idle | SETTLING, size=SETTLING_CONNECTIONS)
        inline = waiting(idle, size=settings.inline_requests)
        self._inline = InlineTransactions(
            inline,
            self._queries,
            self._prepared,
            failpoints,
            self._batch_writer,
            source_ids=self._source_ids,
            registered=self._restore_registration,
            forget=lambda connection: self._routes_files.pop(connection, None),
            on_jobs=self._announcer.announce,
        )
        self._pools = (
            inline,
            self._writers,
            self._claiming,
            self._renewals,
            self._calls,
            self._notifications,
            self._admin,
            self._election_session,
            self._maintenance_pool,
            self._transactions,
            self._lists,
            self._settling,
        )

    def _session(
        self, settings: Mapping[str, str], *, keeps_role_settings: bool = False
    ) -> Session:
        return Session(settings, self._settings.allow_weak_durability, keeps_role_settings)

    def _pool(
        self,
        settings: Mapping[str, str],
        *,
        size: int = 1,
        response_seconds: float | None = None,
        wait_seconds: float | None = None,
        keeps_role_settings: bool = False,
    ) -> ConnectionPool:
        session = self._session(settings, keeps_role_settings=keeps_role_settings)
        if response_seconds is None:
            response_seconds = RESPONSE_SECONDS
        return ConnectionPool(
            functools.partial(connect, self._info, self._connection_class, session),
            size=size,
            wait_seconds=response_seconds if wait_seconds is None else wait_seconds,
            response_seconds=response_seconds,
        )

    async def open(self, *, serving: bool, duties: Duty = EVERY_DUTY) -> None:
        """Connect and check the schema; if `serving`, check durability and migrate first."""
        try:
            await self._open(duties, serving=serving)
        except BaseException:
            await self.close()
            raise

    async def _open(self, duties: Duty, *, serving: bool) -> None:
        if serving:
            await self._check_durability()
        async with self._admin.use_for_ledger(limited=False) as connection:
            await self._check_pooler(connection)
            if serving and self._settings.migrate_at_start:
                await schema.apply_pending(connection, duties)
            else:
                url = redact_url(self._settings.database_url)
                await schema.require_migrated(connection, url, duties)
            if serving:
                await schema.require_privileges(connection, duties)
                await require_keys(connection)

    async def close(self) -> None:
        """Close all connections, without waiting for the server."""
        await self._announcer.close()
        for pool in self._pools:
            pool.close()

    def batch_group(self, arrival: Arrival) -> BatchGroup:
        """Return the group in which a delivery is best written."""
        return self._batch_writer.batch_group(arrival)

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Record deliveries durably, each event once; return a receipt for each, in order."""
        async with (
            self._writers.use_for_ledger() as connection,
            self._registered(connection) as file,
        ):
            return await self._batch_writer.record(connection, arrivals, file)

    async def ready(self) -> None:
        """Raise StoreError unless events can be recorded now."""
        await self._writers.check(self._settings.commit_timeout_seconds)

    async def claim(self, request: ClaimRequest) -> Claim:
        """Lease due jobs. End the leases that are over first, and reclaim lost ones if asked to."""
        async with self._claiming.use_for_ledger() as connection:
            async with self._registered(connection):
                leased, next_due = await self._claims.claim(connection, request, self._handler_ids)
            self._failpoints.reach("claim.leased")
            times = leased["oldest"], leased["newest"]
            jobs = await self._load(connection, leased["jobs"], *times) if leased["jobs"] else ()
        return Claim(
            lease=Lease(request.token, jobs) if jobs else None,
            solo_waiting=next_due["solo_waiting"],
            # Behind the jobs that were parked, others may be due.
            next_due_seconds=0.0 if leased["has_parked"] else next_due["next_due_seconds"],
        )

    async def _load(
        self, connection: Connection, jobs: list[int], oldest: datetime, newest: datetime
    ) -> tuple[Job, ...]:
        """Load jobs whose events were received between two times."""
        parameters = {"jobs": jobs, "inline_bytes": inline_body_bytes(len(jobs))}
        cursor = connection.cursor(binary=True, row_factory=args_row(Job))
        statement = within_weeks(self._queries.one("load_jobs"), oldest, newest)
        await cursor.execute(statement, parameters)
        return tuple(await cursor.fetchall())

    async def end_leases(self, tokens: Sequence[str], settled: Sequence[int] = ()) -> None:
        """Delete leases whose jobs are all settled, and wake the next jobs of the settled keys."""
        async with self._renewals.use_for_ledger() as connection:
            await self._claims.end(connection, tokens, settled)

    async def renew(
        self,
        tokens: Sequence[str],
        lease_seconds: float,
        *,
        owner: int = 0,
        unfinished: Sequence[int] = (),
    ) -> Renewal:
        """Extend leases. Return those still held, and the `unfinished` jobs that were cancelled."""
        parameters = {
            "tokens": list(tokens),
            "lease_seconds": lease_seconds,
            "owner": owner,
            "jobs": list(unfinished),
        }
        async with self._renewals.use_for_ledger() as connection:
            (row,) = await run(connection, self._queries.one("renew"), parameters)
        return Renewal(frozenset(row["held"]), frozenset(row["cancelled"]))

    async def release(self, token: str, jobs: Sequence[int]) -> None:
        """Release jobs that were not started."""
        async with self._renewals.use_for_ledger() as connection:
            parameters = {"token": token, "jobs": list(jobs)}
            await run(connection, self._queries.one("release"), parameters)

    async def settle_error(
        self, token: str, job: int, settlement: ErrorSettlement, elapsed_seconds: float
    ) -> bool:
        """Settle an attempt that is not done. Return False if the lease was lost."""
        parameters = error_parameters(token, job, settlement, elapsed_seconds)
        landed = await self._write(error_statement(settlement), parameters)
        self._failpoints.reach("settle.committed")
        return bool(landed)

    async def settle_done(self, token: str, *jobs: int) -> bool:
        """Settle attempts that wrote nothing. Return False if the lease was lost.

        Raise NotSettled.
        """
        parameters = {"token": token, "jobs": list(jobs)}
        rows = await self._write("settle_done", parameters)
        self._failpoints.reach("settle.committed")
        if sum(row["landed"] for row in rows) == len(jobs):
            return True
        (row,) = await self._read("unsettled", **parameters)
        if row["is_altered"]:
            raise NotSettled(ALTERED_ROWS.format(table="onceward.jobs"))
        return False

    async def _commit_call(self, name: str, /, **parameters: object) -> list[Row]:
        async with self._calls.use_for_ledger() as connection:
            rows = await run(connection, self._queries.one(name), parameters)
            await connection.require_session()
            connection.require_confirmed()
        return rows

    @asynccontextmanager
    async def begin(
        self,
        location: Callable[[], str],
        on_idle_timeout: OnIdleTimeout = ignore_idle_timeout,
        *,
        shared: bool = False,
    ) -> AsyncIterator[PostgresTransaction]:
        """Open a transaction for a handler; roll it back at the end unless it is committed."""
        del location, on_idle_timeout  # the server ends a transaction that idles past its lease
        async with self._transactions.use() as connection:
            transaction = PostgresTransaction(
                connection, self._queries, self._prepared, self._failpoints, shared=shared
            )
            try:
                yield transaction
            finally:
                await transaction.clean_up()

    def lock_events(self, arrivals: Sequence[Arrival]) -> AbstractAsyncContextManager[LockedEvents]:
        """Lock the events of a request, in the transaction of its handlers."""
        return self._inline.lock(arrivals)

    def _recording_failures(self) -> AbstractAsyncContextManager[LedgerTransaction]:
        return self._inline.recording_failures()

    @asynccontextmanager
    async def prepare(self) -> AsyncIterator[PostgresTransaction]:
        """Open a transaction for the app's own tables, in one process at a time."""
        async with self.begin(str) as transaction:
            try:
                for statement in _LOCK_SETUP:
                    await transaction.run(statement, {})
            except psycopg.errors.LockNotAvailable as error:
                raise StoreBlocked(held_too_long(Lock.SETUP, SETUP_TIMEOUT_SECONDS)) from error
            yield transaction

    async def announcements(self) -> AsyncGenerator[None, None]:
        """Yield whenever jobs may have become due, in whichever process they were created."""
        open_one = functools.partial(connect, self._info, SessionConnection, self._session({}))
        async with aclosing(listen(open_one)) as notifications:
            async for _ in notifications:
                yield

    async def presence(self) -> AsyncGenerator[int, None]:
        """Show that the worker is alive, for as long as the generator runs."""
        open_one = functools.partial(connect, self._info, SessionConnection, self._session({}))
        async with aclosing(keep_presence(open_one)) as numbers:
            async for owner in numbers:
                yield owner

    async def _notify(self) -> None:
        async with self._notifications.use_for_ledger() as connection:
            await connection.execute("NOTIFY onceward_jobs")

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
        async with self._renewals.use_for_ledger() as connection:
            await run(connection, self._queries.one("renew_worker"), parameters)

    async def remove_worker(self, worker: str) -> None:
        """Delete the row of a worker that stopped."""
        async with self._renewals.use_for_ledger() as connection:
            await run(connection, self._queries.one("remove_worker"), {"name": worker})

    async def migrate(self) -> list[str]:
        """Apply pending migrations and return their labels."""
        async with self._admin.use_for_ledger(limited=False) as connection:
            await self._check_pooler(connection)
            return await schema.apply_pending(connection)

    def _statements_on(self, connection: Connection) -> PostgresLedgerTransaction:
        return PostgresLedgerTransaction(connection, self._queries, self._batch_writer)

    async def _check_pooler(self, connection: Connection) -> None:
        """Raise StoreBlocked if a pooler does not give each connection a session of its own."""
        if not connection.is_pooled:
            return
        try:
            second = await connect(self._info, self._connection_class, self._session({}))
        except StoreBlocked:
            raise
        except StoreUnavailable as error:
            raise StoreBlocked(f"{error}. {_POOL_EXHAUSTED}") from error
        try:
            with time_limit(connection, RESPONSE_SECONDS), time_limit(second, RESPONSE_SECONDS):
                await require_own_backends(connection, second)
        finally:
            drop(second)

    async def _check_durability(self) -> None:
        async with self._admin.use_for_ledger() as connection:
            weak = await weak_settings(connection)
        require_durability(weak, allow_weak=self._settings.allow_weak_durability)

    async def _read(self, name: str, /, *conditions: str, **parameters: object) -> list[Row]:
        statement = self._queries.one(name, *conditions)
        try:
            async with self._lists.use() as connection:
                with time_limit(connection, RESPONSE_SECONDS):
                    # Planned with its values, so that a filter can use its partial index.
                    cursor = await connection.execute(statement.pyformat, parameters, prepare=False)
                    return await cursor.fetchall()
        except psycopg.Error as error:
            raise translate_error(error, is_sent=False) from error

    async def _write(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        try:
            async with self._settling.use() as connection:
                with time_limit(connection, RESPONSE_SECONDS):
                    rows = await run(connection, self._queries.one(name), parameters)
                    await connection.require_session()
                connection.require_confirmed()
                return rows
        except psycopg.Error as error:
            raise translate_error(error) from error

    @asynccontextmanager
    async def _transaction(self, lock: Lock) -> AsyncIterator[LedgerTransaction]:
        async with self._admin.use_for_ledger() as connection:
            async with self._locked(connection, lock) as transaction:
                yield transaction
                self._failpoints.reach("operate.written")
            self._failpoints.reach("operate.committed")
        if lock in (Lock.LEDGER, Lock.CLAIMS):
            self._announcer.announce()

    @asynccontextmanager
    async def _locked(self, connection: Connection, lock: Lock) -> AsyncIterator[LedgerTransaction]:
        async with connection.transaction():
            await take_lock(connection, lock)
            yield self._statements_on(connection)

    @asynccontextmanager
    async def _registered(self, connection: Connection) -> AsyncIterator[int]:
        """Yield the file of the routes. After a failure, look again what the database has."""
        try:
            yield await self._restore_registration(connection)
        except BaseException:
            self._routes_files.pop(connection, None)  # it may have been restored, or migrated
            raise

    async def _restore_registration(self, connection: Connection) -> int:
        """Register what the database lacks, on a new connection and after a failed write.

        Return the file of the routes. On the connection itself: another one may still lead to the
        previous primary. Raise NewerSchema.
        """
        if connection in self._routes_files:
            return self._routes_files[connection]
        file = await schema.routes_file(connection)
        # Without a lock: recording need not wait for a process that registers or migrates.
        autocommit = self._statements_on(connection)
        if not await self._registration.is_complete(autocommit):
            async with self._locked(connection, Lock.REGISTRY) as transaction:
                await self._registration.restore(transaction)
        self._routes_files[connection] = file
        return file


def _timeout(setting: str, seconds: float) -> dict[str, str]:
    return {setting: str(int(seconds * 1000))}
