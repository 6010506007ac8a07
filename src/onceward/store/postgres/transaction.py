"""A handler's transaction on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus

from onceward.errors import (
    ConnectionLost,
    LeaseLost,
    NeedsOwnTransaction,
    NotSettled,
    StoreBlocked,
    TransactionMisuse,
    Unwritable,
)
from onceward.model.versions import Watermark
from onceward.ports import Row, Rows
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.store.base import (
    ALTERED_ROWS,
    ENDED_BY_HANDLER,
    LEASE_LOST,
    read_watermark,
    require_mark,
    watermark_parameters,
)
from onceward.store.postgres.connections import (
    OPERATIONAL,
    READ_ONLY,
    STATEMENT_TIMEOUT,
    Connection,
    is_connection_lost,
    is_read_only,
    is_statement_timeout,
    run,
    translate_error,
)
from onceward.store.postgres.pool import drop
from onceward.store.postgres.privileges import explain_refused_create
from onceward.store.postgres.time_limit import RESPONSE_SECONDS, time_limit
from onceward.store.queries import Queries
from onceward.store.unsupported_values import unsupported_value

_PLAIN: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "MERGE", "VALUES"})
_SESSION_WORDS: Final = ("advisory", "set_config", "temp")

# Two shared transactions with rows in common would otherwise wait until the server finds the
# deadlock.
_SHARED: Final = b"SET LOCAL lock_timeout = '20ms'"
# The handler may have suppressed the warning of a commit that no standby confirmed.
_COMMIT: Final = b"SET LOCAL client_min_messages = 'warning'; COMMIT"

_NOT_DONE: Final = "the job cannot be marked as done"
_READ_ONLY_HANDLER: Final = f"{_NOT_DONE}: the handler made its transaction read-only"
_OTHER_ROLE: Final = (
    "If the handler runs SET ROLE, set the role back before it returns (docs/handlers.md); if not, "
    "a grant was revoked (docs/install.md)"
)


class PostgresTransaction:
    """One transaction on one connection of the pool."""

    def __init__(
        self, connection: Connection, queries: Queries, failpoints: Failpoints, *, shared: bool
    ) -> None:
        self._connection = connection
        self._cursor = connection.cursor()  # reused, because creating one is expensive
        self._queries = queries
        self._failpoints = failpoints
        self._is_shared = shared
        self._began: datetime | None = None
        self._has_run = False

    async def begin(self) -> datetime:
        """Begin, and return now(), which stays the same until the transaction ends."""
        try:
            with time_limit(self._connection, RESPONSE_SECONDS):
                began = await self._connection.begin(*((_SHARED,) if self._is_shared else ()))
        except OPERATIONAL as error:
            raise translate_error(error, is_sent=False) from error
        self._began = began
        return began

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of the handler. Raise ConnectionLost."""
        if self._is_shared and _changes_session(statement):
            message = f"{statement.keyword} cannot run in a transaction that jobs share"
            raise NeedsOwnTransaction(message)
        self._has_run = True
        try:
            await self._execute(statement, parameters)
        except psycopg.ProgrammingError as error:
            if isinstance(error, psycopg.errors.InsufficientPrivilege) and (
                statement.keyword == "CREATE"
            ):
                explain_refused_create(error, self._connection.info.user)
            misuse = unsupported_value(statement, parameters, self._is_supported)
            if error.sqlstate is not None or misuse is None:  # the server's errors have a state
                raise
            raise misuse from error
        rows = await self._cursor.fetchall() if self._cursor.description else []
        return Rows(rows, max(self._cursor.rowcount, 0))

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. Return True for the first job with this key, over all events."""
        parameters = {"job": job, "key": key, "reference": reference}
        await self._execute(self._queries.one("mark_effect"), parameters)
        is_first = bool(await self._cursor.fetchall())
        if not is_first:
            await self._execute(self._queries.one("marked_effect"), parameters)
            require_mark(key, await self._cursor.fetchall(), table="onceward.effects")
        self._failpoints.reach("effect.written")
        return is_first

    async def _execute(self, statement: Sql, parameters: Mapping[str, Any]) -> None:
        try:
            with self._lost_connections():
                await self._cursor.execute(statement.pyformat, parameters)
        except psycopg.errors.QueryCanceled as error:
            if is_statement_timeout(error):
                error.add_note(STATEMENT_TIMEOUT)
            raise
        except psycopg.errors.ReadOnlySqlTransaction as error:
            error.add_note(READ_ONLY)
            self._drop_read_only(error)
            raise

    def _drop_read_only(self, error: psycopg.Error) -> None:
        """Drop the connection. Raise ConnectionLost unless the handler made it read-only."""
        is_handlers_own = not is_read_only(self._connection)
        drop(self._connection)  # a new connection finds the new primary
        if not is_handlers_own:
            raise ConnectionLost(READ_ONLY) from error

    @contextmanager
    def _lost_connections(self) -> Iterator[None]:
        """Raise ConnectionLost if the connection is lost: nothing was committed."""
        try:
            yield
        except OPERATIONAL as error:
            if not is_connection_lost(self._connection, error):
                raise
            reason = translate_error(error, is_sent=False)
            raise ConnectionLost(str(reason)) from error

    def _is_supported(self, value: object) -> bool:
        try:
            Transformer(self._cursor).as_literal(value)
        except psycopg.ProgrammingError:
            return False
        return True

    async def settle(self, token: str, *jobs: int) -> None:
        """Mark the jobs as done.

        Raise LeaseLost, NotSettled, or TransactionMisuse if a handler has ended the transaction.
        """
        parameters = {"token": token, "jobs": list(jobs), "began": self._began}
        rows = await self._run_last(self._queries.one("settle_done", "began"), parameters)
        if sum(row["landed"] for row in rows) != len(jobs):
            await self._raise_not_settled(parameters)
        self._failpoints.reach("settle.written")

    async def lock_watermark(self, handler: str, key: str, new: Watermark) -> Watermark:
        """Return the watermark of a handler's key, or write `new` and return it.

        Raise TransactionMisuse if a handler has ended the transaction.
        """
        if self._connection.info.transaction_status is TransactionStatus.IDLE:
            raise TransactionMisuse(ENDED_BY_HANDLER)  # a statement would commit by itself
        parameters = watermark_parameters(handler, key, new)
        for name in ("lock_watermark", "add_watermark", "lock_watermark"):
            if rows := await self._run_last(self._queries.one(name), parameters):
                return new if name == "add_watermark" else read_watermark(rows[0])
        raise StoreBlocked(ALTERED_ROWS.format(table="onceward.watermarks"))

    async def set_watermark(self, handler: str, key: str, new: Watermark) -> None:
        """Replace a locked watermark."""
        parameters = watermark_parameters(handler, key, new)
        rows = await self._run_last(self._queries.one("set_watermark"), parameters)
        if [row["landed"] for row in rows] != [True]:
            raise StoreBlocked(ALTERED_ROWS.format(table="onceward.watermarks"))

    async def _run_last(self, statement: Sql, parameters: Mapping[str, Any]) -> list[Row]:
        """Run a statement that follows those of the handler. Raise ConnectionLost or Unwritable."""
        with self._settling():
            return await run(self._connection, statement, parameters)

    @contextmanager
    def _settling(self) -> Iterator[None]:
        """Explain the errors of Onceward's own statements in the session that the handler left."""
        try:
            with self._lost_connections(), time_limit(self._connection, RESPONSE_SECONDS):
                yield
        except psycopg.errors.ReadOnlySqlTransaction as error:
            self._drop_read_only(error)
            raise Unwritable(_READ_ONLY_HANDLER) from error
        except psycopg.errors.InsufficientPrivilege as error:
            text = error.diag.message_primary
            raise Unwritable(f"{_NOT_DONE}: {text}. {_OTHER_ROLE}") from error

    async def commit(self) -> None:
        """Commit. Raise OutcomeUnknown if the connection is lost meanwhile."""
        # COMMIT silently rolls an aborted transaction back.
        if self._connection.info.transaction_status is not TransactionStatus.INTRANS:
            raise TransactionMisuse(ENDED_BY_HANDLER)
        try:
            with time_limit(self._connection, RESPONSE_SECONDS):
                await self._connection.execute(_COMMIT, prepare=False)
        except psycopg.Error as error:
            raise translate_error(error) from error
        self._connection.require_confirmed()
        self._failpoints.reach("settle.committed")

    async def clean_up(self) -> None:
        """Roll back, unless the transaction has ended, and undo the handler's session changes.

        Close the connection if that fails.
        """
        try:
            with time_limit(self._connection, RESPONSE_SECONDS):
                status = self._connection.info.transaction_status
                is_open = status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
                if self._has_run:
                    await self._connection.reset_session(rolls_back=is_open)
                elif is_open:
                    await self._connection.execute("ROLLBACK")
        except psycopg.Error:
            drop(self._connection)
        except BaseException:
            drop(self._connection)
            raise

    async def _raise_not_settled(self, parameters: Mapping[str, Any]) -> None:
        statement = self._queries.one("unsettled")
        with self._lost_connections(), time_limit(self._connection, RESPONSE_SECONDS):
            (row,) = await run(self._connection, statement, parameters)
        if row["began"] != self._began:
            raise TransactionMisuse(ENDED_BY_HANDLER)
        if row["is_altered"]:
            raise NotSettled(ALTERED_ROWS.format(table="onceward.jobs"))
        raise LeaseLost(LEASE_LOST)


@lru_cache(maxsize=1024)
def _changes_session(statement: Sql) -> bool:
    """Return whether a statement may change the session beyond the transaction."""
    lowered = statement.text.lower()
    return statement.keyword not in _PLAIN or any(word in lowered for word in _SESSION_WORDS)
