"""A transaction of named statements on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.model.events import Arrival, Receipt
from onceward.ports import Row
from onceward.store.postgres.connections import Connection, run
from onceward.store.postgres.recording import BatchWriter
from onceward.store.queries import Queries


class PostgresLedgerTransaction:
    """Runs named statements, and records deliveries, in the open transaction of a connection."""

    def __init__(
        self,
        connection: Connection,
        queries: Queries,
        batch_writer: BatchWriter,
        routes_file: int | None = None,
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._batch_writer = batch_writer
        self._routes_file = routes_file

    async def run(self, name: str, /, *conditions: str, **parameters: object) -> list[Row]:
        """Run a named statement, with the blocks of `conditions`, and return its rows."""
        return await run(self._connection, self._queries.one(name, *conditions), parameters)

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Record deliveries as part of the transaction; return their receipts, in order."""
        return await self._batch_writer.record_in(self, arrivals, self._routes_file)
