"""A handler's transaction on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from onceward.errors import LeaseLost, TransactionMisuse
from onceward.failpoints import Failpoints
from onceward.ports import Row, Rows
from onceward.sqltext import Sql
from onceward.store.postgres_link import Connection, run, trouble
from onceward.store.queries import Queries
from onceward.store.shared import ENDED_BY_HANDLER

_PLAIN: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "MERGE", "VALUES"})
_LEAKS: Final = ("advisory", "set_config", "temp")


class PostgresSession:
    """One transaction on one connection of the pool."""

    def __init__(self, connection: Connection, queries: Queries, failpoints: Failpoints) -> None:
        self._connection = connection
        self._queries = queries
        self._failpoints = failpoints
        self._began: datetime | None = None
        self.leaks = False
        """Whether a statement may have changed the session beyond the transaction."""

    async def begin(self) -> None:
        """Start it, and remember when: the time stands still until it ends."""
        async with self._connection.pipeline():
            await self._connection.execute("BEGIN")
            cursor = await self._connection.execute("SELECT now() AS began")
        row = await cursor.fetchone()
        self._began = row["began"] if row else None

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of the handler."""
        lowered = statement.text.lower()
        if statement.keyword not in _PLAIN or any(word in lowered for word in _LEAKS):
            self.leaks = True
        cursor = await self._execute(statement, parameters)
        rows = await cursor.fetchall() if cursor.description else []
        return Rows(rows, max(cursor.rowcount, 0))

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. True for the first, over all events."""
        parameters = {"job": job, "key": key, "reference": reference}
        cursor = await self._execute(self._queries.one("effect_once"), parameters)
        rows = await cursor.fetchall()
        self._failpoints.reach("effect.written")
        return bool(rows)

    async def _execute(
        self, statement: Sql, parameters: Mapping[str, Any]
    ) -> psycopg.AsyncCursor[Row]:
        try:
            return await self._connection.execute(statement.pyformat.encode(), parameters)
        except psycopg.errors.ReadOnlySqlTransaction:
            await self._connection.close()  # its server became a standby: find the new one
            raise

    async def settle(self, token: str, job: int) -> None:
        """Write the job's done. Raises LeaseLost, or TransactionMisuse if the handler ended it."""
        parameters = {"token": token, "job": job, "began": self._began}
        statement = self._queries.one("settle_done", "began")
        if not await run(self._connection, statement, parameters):
            await self._explain_lost_settle()
        self._failpoints.reach("settle.written")

    async def commit(self) -> None:
        """Make all of it durable. Raises OutcomeUnknown when the connection is lost meanwhile."""
        # COMMIT of an aborted transaction is a silent ROLLBACK.
        if self._connection.info.transaction_status is not TransactionStatus.INTRANS:
            raise TransactionMisuse(ENDED_BY_HANDLER)
        try:
            await self._connection.execute("COMMIT")
        except psycopg.Error as error:
            raise trouble(error) from error
        self._failpoints.reach("settle.committed")

    async def rollback(self) -> None:
        """End it without a trace."""
        status = self._connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            await self._connection.execute("ROLLBACK")

    async def _explain_lost_settle(self) -> None:
        cursor = await self._connection.execute("SELECT now() AS began")
        row = await cursor.fetchone()
        if row and row["began"] != self._began:
            raise TransactionMisuse(ENDED_BY_HANDLER)
        message = "the lease ended before the job was settled; nothing was committed"
        raise LeaseLost(message)
