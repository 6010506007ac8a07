"""A handler's transaction on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from onceward.errors import LeaseLost, NeedsOwnTransaction, TransactionMisuse
from onceward.ports import Rows
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.store.base import ENDED_BY_HANDLER
from onceward.store.postgres.connections import Connection, translate_error
from onceward.store.queries import Queries

_PLAIN: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "MERGE", "VALUES"})
_LEAKS: Final = ("advisory", "set_config", "temp")

# One message each, so that there is one round trip.
_BEGIN: Final = b"BEGIN; SELECT now() AS began"
# Two that share rows would otherwise wait for each other until the server sees a deadlock.
_BEGIN_SHARED: Final = b"BEGIN; SET LOCAL lock_timeout = '20ms'; SELECT now() AS began"


class PostgresTransaction:
    """One transaction on one connection of the pool."""

    def __init__(
        self, connection: Connection, queries: Queries, failpoints: Failpoints, *, shared: bool
    ) -> None:
        self._connection = connection
        self._cursor = connection.cursor()  # one for all statements: making them costs
        self._queries = queries
        self._failpoints = failpoints
        self._shared = shared
        self._began: datetime | None = None
        self.leaks = False
        """Whether a statement may have changed the session beyond the transaction."""

    async def begin(self) -> None:
        """Start it, and remember when: the time stands still until it ends."""
        text = _BEGIN_SHARED if self._shared else _BEGIN
        cursor = await self._connection.execute(text, prepare=False)
        while cursor.nextset():
            pass
        row = await cursor.fetchone()
        self._began = row["began"] if row else None

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of the handler."""
        if _leaks(statement):
            if self._shared:
                message = f"{statement.keyword} is not run in a transaction that jobs share"
                raise NeedsOwnTransaction(message)
            self.leaks = True
        await self._execute(statement, parameters)
        rows = await self._cursor.fetchall() if self._cursor.description else []
        return Rows(rows, max(self._cursor.rowcount, 0))

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. True for the first, over all events."""
        parameters = {"job": job, "key": key, "reference": reference}
        await self._execute(self._queries.one("effect_once"), parameters)
        rows = await self._cursor.fetchall()
        self._failpoints.reach("effect.written")
        return bool(rows)

    async def _execute(self, statement: Sql, parameters: Mapping[str, Any]) -> None:
        try:
            await self._cursor.execute(statement.pyformat, parameters)
        except psycopg.errors.ReadOnlySqlTransaction:
            await self._connection.close()  # its server became a standby: find the new one
            raise

    async def settle(self, token: str, *jobs: int) -> None:
        """Write the jobs' done. Raises LeaseLost, or TransactionMisuse if a handler ended it."""
        parameters = {"token": token, "jobs": list(jobs), "began": self._began}
        statement = self._queries.one("settle_done", "began")
        cursor = await self._connection.execute(statement.pyformat, parameters)
        if cursor.rowcount != len(jobs):
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
            raise translate_error(error) from error
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


@lru_cache(maxsize=1024)
def _leaks(statement: Sql) -> bool:
    """Whether a statement may change the session beyond the transaction."""
    lowered = statement.text.lower()
    return statement.keyword not in _PLAIN or any(word in lowered for word in _LEAKS)
