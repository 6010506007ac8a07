"""A handler's transaction on PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NoReturn

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
from onceward.model.jobs import Fail
from onceward.model.versions import Watermark
from onceward.ports import Row, Rows
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql
from onceward.store.base import (
    ALTERED_ROWS,
    ENDED_BY_HANDLER,
    LEASE_LOST,
    error_parameters,
    read_watermark,
    require_mark,
    watermark_parameters,
)
from onceward.store.postgres.connections import (
    OPERATIONAL,
    OTHER_SESSION,
    READ_ONLY,
    STATEMENT_TIMEOUT,
    Connection,
    is_connection_lost,
    is_read_only,
    is_statement_timeout,
    run,
    translate_error,
)
from onceward.store.postgres.plan_settings import KEEP_PLAN, UNDO_KEEP_PLAN
from onceward.store.postgres.pool import drop
from onceward.store.postgres.prepared import PreparedStatement
from onceward.store.postgres.privileges import explain_refused_create
from onceward.store.postgres.session import SHARED_BACKENDS
from onceward.store.postgres.time_limit import RESPONSE_SECONDS, time_limit
from onceward.store.queries import Queries
from onceward.store.unsupported_values import unsupported_value

_PLAIN: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "MERGE", "VALUES"})
_SESSION_WORDS: Final = ("advisory", "set_config", "temp")

# Two shared transactions with rows in common would otherwise wait until the server finds the
# deadlock.
_SHARED: Final = b"SET LOCAL lock_timeout = '20ms'"
# Without the quotation marks around it, which are translated with the message.
_UNSETTLED: Final = re.compile(r"unsettled: (?:(?P<ended>ended)|altered (?P<altered>\d+)|lost)")
"""The text that a settlement casts to a number, in vain, if it does not land."""
_NOT_DONE: Final = "the job cannot be marked as done"
_READ_ONLY_HANDLER: Final = f"{_NOT_DONE}: the handler made its transaction read-only"
_OTHER_ROLE: Final = (
    "If the handler runs SET ROLE, set the role back before it returns (docs/handlers.md); if not, "
    "a grant was revoked (docs/install.md)"
)
_OTHER_SESSION: Final = (
    "its session lacks the statements that Onceward prepared. The handler, or a function that it "
    f"calls, deallocated them, or: {SHARED_BACKENDS}"
)


class PreparedStatements:
    """Statements of handlers' transactions that are sent in a message with others."""

    def __init__(self, queries: Queries) -> None:
        self.settle = PreparedStatement("settle", queries.one("settle_done", "committing"))
        self.mark_effect = PreparedStatement("mark", queries.one("mark_effect"))


class PostgresTransaction:
    """One transaction on one connection of the pool. It begins with the first statement."""

    def __init__(
        self,
        connection: Connection,
        queries: Queries,
        prepared: PreparedStatements,
        failpoints: Failpoints,
        *,
        shared: bool = False,
    ) -> None:
        self._connection = connection
        self._cursor = connection.cursor()  # reused, because creating one is expensive
        self._queries = queries
        self._prepared = prepared
        self._failpoints = failpoints
        self._further = (_SHARED,) if shared else ()
        """Statements that follow the one that begins the transaction."""
        self._is_shared = shared
        self._began: datetime | None = None
        self._must_reset = False
        """Whether the handler may have changed the session."""

    async def begin(self) -> datetime:
        """Begin, and return now(), which stays the same until the transaction ends."""
        if self._began is None:
            try:
                with time_limit(self._connection, RESPONSE_SECONDS):
                    self._began, _ = await self._connection.begin(*self._further)
            except OPERATIONAL as error:
                raise translate_error(error, is_sent=False) from error
        return self._began

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of the handler. Raise ConnectionLost."""
        if self._is_shared and _changes_session(statement):
            message = f"{statement.keyword} cannot run in a transaction that jobs share"
            raise NeedsOwnTransaction(message)
        await self.begin()
        self._must_reset = True
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
        if self._began is None:
            values = {"job": str(job), "key": key, "reference": reference}
            is_first = await self._begin_with_mark(values)
        else:  # as parameters: literals are UTF-8, and the handler may have set another encoding
            await self._execute(self._queries.one("mark_effect"), parameters)
            is_first = bool(await self._cursor.fetchall())
        if not is_first:
            await self._execute(self._queries.one("marked_effect"), parameters)
            marks = await self._cursor.fetchall()
            require_mark(key, marks, table="onceward.effects")
            if marks[0]["is_untouched"]:
                await self._execute(self._queries.one("touch_effect"), parameters)
        self._failpoints.reach("effect.written")
        return is_first

    async def _begin_with_mark(self, values: Mapping[str, str | None]) -> bool:
        """Begin, and insert the mark of an effect. Return whether it is the first one."""
        mark = self._prepared.mark_effect
        if not mark.is_prepared(self._connection):
            await self.begin()
        with self._handler_errors():
            await mark.prepare(self._connection)
            insert = mark.bind(values)
            if self._began is None:
                self._began, (rows,) = await self._connection.begin(*self._further, insert)
            else:
                (rows,) = await self._connection.exchange(insert)
        return bool(rows)

    async def _execute(self, statement: Sql, parameters: Mapping[str, Any]) -> None:
        with self._handler_errors():
            await self._cursor.execute(statement.pyformat, parameters)

    @contextmanager
    def _handler_errors(self) -> Iterator[None]:
        """Raise ConnectionLost, or the error of a statement with what to do about it."""
        try:
            with self._lost_connections():
                yield
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

    async def commit_done(self, leases: Mapping[str, Sequence[int]]) -> None:
        """Mark the jobs of leases as done, and commit, in one message.

        Raise LeaseLost, NotSettled, TransactionMisuse if a handler has ended the transaction, or
        OutcomeUnknown if the connection is lost meanwhile.
        """
        began = (await self.begin()).isoformat()
        self._failpoints.reach("settle.written")  # as after it: nothing is committed
        settlements = [
            {"token": token, "jobs": f"{{{','.join(map(str, jobs))}}}", "began": began}
            for token, jobs in leases.items()
        ]
        try:
            await self._commit(settlements)
        except psycopg.errors.InvalidTextRepresentation as error:
            unsettled = _UNSETTLED.search(error.diag.message_primary or "")
            if unsettled is None:
                raise translate_error(error) from error
            await self._raise_not_settled(unsettled, leases)
        except psycopg.Error as error:
            raise translate_error(error) from error

    async def settle_failed(
        self, token: str, job: int, failure: Fail, elapsed_seconds: float
    ) -> bool:
        """Mark a job as failed. Return False if its lease was lost, or it need not fail after all.

        Raise TransactionMisuse if a handler has ended the transaction.
        """
        await self.begin()
        self._require_open()
        values = error_parameters(token, job, failure, elapsed_seconds) | {"began": self._began}
        rows = await self._run_last(self._queries.one("settle_failed"), values)
        self._failpoints.reach("settle.written")
        return any(row["landed"] for row in rows)

    def _require_open(self) -> None:
        if self._connection.info.transaction_status is TransactionStatus.IDLE:
            raise TransactionMisuse(ENDED_BY_HANDLER)  # a statement would commit by itself

    async def lock_watermark(self, handler: str, key: str, new: Watermark) -> Watermark:
        """Return the watermark of a handler's key, or write `new` and return it.

        Raise TransactionMisuse if a handler has ended the transaction.
        """
        await self.begin()
        self._require_open()
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
        with (
            self._explained(),
            self._lost_connections(),
            time_limit(self._connection, RESPONSE_SECONDS),
        ):
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explain why the session that the handler left cannot write Onceward's tables."""
        try:
            yield
        except psycopg.errors.ReadOnlySqlTransaction as error:
            self._drop_read_only(error)
            raise Unwritable(_READ_ONLY_HANDLER) from error
        except psycopg.errors.InsufficientPrivilege as error:
            text = error.diag.message_primary
            raise Unwritable(f"{_NOT_DONE}: {text}. {_OTHER_ROLE}") from error
        except OTHER_SESSION as error:
            drop(self._connection)
            raise Unwritable(f"{_NOT_DONE}: {_OTHER_SESSION}") from error

    async def commit(self) -> None:
        """Commit. Raise OutcomeUnknown if the connection is lost meanwhile."""
        if self._began is None:
            return
        try:
            await self._commit(())
        except psycopg.Error as error:
            raise translate_error(error) from error

    async def _commit(self, settlements: Sequence[Mapping[str, str]]) -> None:
        """Settle jobs, commit and reset the session. Raise psycopg.Error."""
        # COMMIT silently rolls an aborted transaction back.
        if self._connection.info.transaction_status is not TransactionStatus.INTRANS:
            raise TransactionMisuse(ENDED_BY_HANDLER)
        settle = self._prepared.settle
        statements: tuple[bytes, ...] = ()
        with self._explained(), time_limit(self._connection, RESPONSE_SECONDS):
            if settlements:
                await settle.prepare(self._connection)
                statements = (KEEP_PLAN, *map(settle.bind, settlements), UNDO_KEEP_PLAN)
            await self._connection.commit_and_reset(*statements)
        self._must_reset = False
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
                if self._must_reset:
                    await self._connection.reset_session(rolls_back=is_open)
                    self._must_reset = False
                elif is_open:
                    await self._connection.execute("ROLLBACK")
        except psycopg.Error:
            drop(self._connection)
        except BaseException:
            drop(self._connection)
            raise

    async def _raise_not_settled(
        self, unsettled: re.Match[str], leases: Mapping[str, Sequence[int]]
    ) -> NoReturn:
        """Raise why a settlement did not land.

        Read an altered job again after a rollback: one that was cancelled meanwhile also looks
        altered.
        """
        if unsettled["ended"]:
            raise TransactionMisuse(ENDED_BY_HANDLER)
        if unsettled["altered"]:
            await self.clean_up()
            job = int(unsettled["altered"])
            token = next((token for token, jobs in leases.items() if job in jobs), "")
            with self._lost_connections(), time_limit(self._connection, RESPONSE_SECONDS):
                parameters = {"token": token, "jobs": [job]}
                (row,) = await run(self._connection, self._queries.one("unsettled"), parameters)
            if row["is_altered"]:
                raise NotSettled(ALTERED_ROWS.format(table="onceward.jobs"))
        raise LeaseLost(LEASE_LOST)


@lru_cache(maxsize=1024)
def _changes_session(statement: Sql) -> bool:
    """Return whether a statement may change the session beyond the transaction."""
    lowered = statement.text.lower()
    return statement.keyword not in _PLAIN or any(word in lowered for word in _SESSION_WORDS)
