"""The transaction of handlers that run within the request, on PostgreSQL.

It begins with the request: the locks on the events are its own, and end with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from onceward.errors import EventBusy, StoreError, TransactionMisuse
from onceward.model.events import Arrival
from onceward.model.inline import BUSY, InlineRun, InlineSettlement, LedgerView
from onceward.ports import LockedEvents
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import parse
from onceward.store.base import ENDED_BY_HANDLER
from onceward.store.inline import look, settle
from onceward.store.locks import INLINE_NAMESPACE
from onceward.store.migrate import require_known
from onceward.store.postgres.connections import (
    NEWEST_MIGRATION,
    Connection,
    is_closed_by_server,
    ledger_error,
    run,
)
from onceward.store.postgres.ledger_transaction import PostgresLedgerTransaction
from onceward.store.postgres.pool import ConnectionPool
from onceward.store.postgres.recording import BatchWriter
from onceward.store.postgres.time_limit import RESPONSE_SECONDS, time_limit
from onceward.store.postgres.transaction import PostgresTransaction, PreparedStatements
from onceward.store.queries import Queries

# Onceward's statements find no function of the handler's schemas. Rows are locked in the order of
# their ids, as by receivers: a bitmap scan would lock them in their physical order. OFFSET 0 keeps
# the two queries apart: the settings are read before they are changed.
_ENTER: Final = parse("""
    SELECT
        noted.*,
        pg_catalog.set_config('search_path', 'pg_catalog', true) AS own_path,
        pg_catalog.set_config('enable_bitmapscan', 'off', true) AS own_scan
    FROM (
        SELECT
            pg_catalog.now() AS began,
            pg_catalog.current_setting('search_path') AS search_path,
            pg_catalog.current_setting('enable_bitmapscan') AS bitmapscan
        OFFSET 0
    ) AS noted
""")[0]
_LEAVE: Final = parse("""
    SELECT
        pg_catalog.set_config('search_path', :search_path, true),
        pg_catalog.set_config('enable_bitmapscan', :bitmapscan, true)
""")[0]
_TRY_LOCKS: Final = parse(f"""
    SELECT
        bool_and(pg_try_advisory_xact_lock(:namespace::int, key)) AS is_locked,
        {NEWEST_MIGRATION} AS newest
    FROM unnest(:keys::int[]) AS key
""")[0]  # noqa: S608 - no outside data
LOCKS: Final = 256
"""The number of locks of a source. The server's memory holds only some thousands, and a request may
have many events, which must not keep other sources waiting."""


class PostgresInlineTransaction(PostgresTransaction):
    """One transaction that locks events, runs their handlers and records both."""

    def __init__(
        self,
        connection: Connection,
        queries: Queries,
        prepared: PreparedStatements,
        failpoints: Failpoints,
        *,
        batch_writer: BatchWriter,
        source_ids: Mapping[str, int],
        routes_file: int,
    ) -> None:
        super().__init__(connection, queries, prepared, failpoints)
        self._batch_writer = batch_writer
        self._source_ids = source_ids
        self._routes_file = routes_file
        self.has_queued_jobs = False
        """Whether it recorded jobs that workers run."""

    async def lock(self, arrivals: Sequence[Arrival]) -> LedgerView:
        """Lock the events of a request, and return what the ledger has of them.

        Raise EventBusy, or NewerSchema before a handler runs on it. The read is a later statement:
        it sees what the last holder committed.
        """
        async with self._own_statements() as ledger:
            keys = [_lock_key(arrival) for arrival in arrivals]
            parameters = {"namespace": INLINE_NAMESPACE, "keys": keys}
            (row,) = await run(self._connection, _TRY_LOCKS, parameters)
            require_known("postgres", row["newest"])
            if row["is_locked"] is False:  # None without any events
                raise EventBusy(BUSY)
            has_filters = self._batch_writer.has_filters
            return await look(ledger.run, arrivals, self._source_ids, has_filters=has_filters)

    def is_lost(self) -> bool:
        """Return whether the server has ended the transaction while no statement ran."""
        is_idle = self._connection.info.transaction_status is TransactionStatus.INTRANS
        return is_idle and is_closed_by_server(self._connection)

    async def settle_inline(
        self, arrivals: Sequence[Arrival], runs: Sequence[InlineRun]
    ) -> InlineSettlement:
        """Record the deliveries of a request and mark the jobs of its handlers as done."""
        async with self._own_statements() as ledger:
            settlement = await settle(ledger, arrivals, runs, self._source_ids)
        self.has_queued_jobs = settlement.has_queued_jobs
        self._failpoints.reach("settle.written")
        return settlement

    @asynccontextmanager
    async def _own_statements(self) -> AsyncIterator[PostgresLedgerTransaction]:
        """Run statements of Onceward's own, with its own settings.

        The handler's settings return afterwards: its deferred constraints are checked at the
        commit. Raise TransactionMisuse if a handler has ended the transaction.
        """
        try:
            with self._settling():
                (noted,) = await run(self._connection, _ENTER, {})
                if noted["began"] != self._began:
                    raise TransactionMisuse(ENDED_BY_HANDLER)
                yield PostgresLedgerTransaction(
                    self._connection, self._queries, self._batch_writer, self._routes_file
                )
                await run(self._connection, _LEAVE, noted)
        except psycopg.Error as error:
            raise ledger_error(error) from error


class InlineTransactions:
    """Begins the transactions of requests to inline sources, on connections of their own."""

    def __init__(
        self,
        pool: ConnectionPool,
        queries: Queries,
        prepared: PreparedStatements,
        failpoints: Failpoints,
        batch_writer: BatchWriter,
        *,
        source_ids: Mapping[str, int],
        registered: Callable[[Connection], Awaitable[int]],
        forget: Callable[[Connection], object],
        on_jobs: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._queries = queries
        self._prepared = prepared
        self._failpoints = failpoints
        self._batch_writer = batch_writer
        self._source_ids = source_ids
        self._registered = registered
        """Registers what the ledger lacks, and returns the file of its routes."""
        self._forget = forget
        """Forgets that a ledger is registered: it may have been restored."""
        self._on_jobs = on_jobs
        """Called after a commit that created jobs for workers."""

    @asynccontextmanager
    async def lock(self, arrivals: Sequence[Arrival]) -> AsyncIterator[LockedEvents]:
        """Begin a transaction and lock the events of a request in it. Raise EventBusy."""
        async with self._pool.use() as connection:
            transaction = PostgresInlineTransaction(
                connection,
                self._queries,
                self._prepared,
                self._failpoints,
                batch_writer=self._batch_writer,
                source_ids=self._source_ids,
                routes_file=await self._routes_file(connection),
            )
            try:
                now = await transaction.begin()
                view = await transaction.lock(arrivals)
                # It has begun with the locks. The server ends it if it idles past its lease.
                yield LockedEvents(
                    view, now, lambda *_: nullcontext(transaction), transaction.is_lost
                )
            except StoreError:
                self._forget(connection)
                raise
            finally:
                await transaction.clean_up()
        if transaction.has_queued_jobs:
            self._on_jobs()

    @asynccontextmanager
    async def recording_failures(self) -> AsyncIterator[PostgresLedgerTransaction]:
        """Begin a transaction that records failed attempts, and commit it at the end."""
        async with self._pool.use_for_ledger() as connection:
            file = await self._registered(connection)
            async with connection.transaction():
                yield PostgresLedgerTransaction(connection, self._queries, self._batch_writer, file)
        self._on_jobs()

    async def _routes_file(self, connection: Connection) -> int:
        try:
            with time_limit(connection, RESPONSE_SECONDS):
                return await self._registered(connection)
        except psycopg.Error as error:
            raise ledger_error(error) from error


def _lock_key(arrival: Arrival) -> int:
    """Return the lock of an event. Two events with one lock only wait for each other."""
    source = int.from_bytes(hashlib.sha256(arrival.source.encode()).digest()[:4]) >> 1
    event = int.from_bytes(hashlib.sha256(arrival.event_id.encode()).digest()[:4])
    return source - source % LOCKS + event % LOCKS
