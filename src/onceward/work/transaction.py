"""A handler's transaction: `tx` for the handler, the unit of work for the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Self, TypeVar, TypeVarTuple

from onceward.errors import OncewardError, TransactionMisuse
from onceward.ports import Row, Rows, StoreTransaction
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import Sql, parse

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Parameters = Mapping[str, Any]
Begin = Callable[[Callable[[], str]], AbstractAsyncContextManager[StoreTransaction]]
"""Begins a transaction. Its argument returns the handler's current line, for error messages."""

_TRANSACTION_KEYWORDS: Final = frozenset(
    {"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE", "SAVEPOINT", "RELEASE"}
)
_CONNECTION_KEYWORDS: Final = frozenset({"PRAGMA", "ATTACH", "DETACH", "VACUUM"})
_REFUSED_KEYWORDS: Final = _TRANSACTION_KEYWORDS | _CONNECTION_KEYWORDS

_CANCELLED: Final = "a statement was cancelled and may or may not have run; nothing is committed"


class UnitOfWork:
    """The transaction of one attempt. It begins with the first statement.

    Leaving the unit of work rolls back what was not committed. A failed statement ends the
    transaction on both stores: a handler that swallows the error cannot commit the rest.
    """

    def __init__(self, begin: Begin, clock: Clock, failpoints: Failpoints) -> None:
        self._begin = begin
        self._failpoints = failpoints
        self._clock = clock
        self.location: Callable[[], str] = lambda: "an unknown line"
        """Returns the line at which the handler is now."""
        self.statement_seconds = 0.0
        """The total time that its statements took."""
        self._lock = asyncio.Lock()
        self._context: AbstractAsyncContextManager[StoreTransaction] | None = None
        self._transaction: StoreTransaction | None = None
        self._failure: Exception | None = None
        self._is_closed = False
        self._writer: asyncio.Task[Any] | None = None

    async def run(self, sql: str, parameters: Parameters) -> Rows:
        """Run one statement of the handler."""
        rows = await self._exclusively(self._run, sql, parameters)
        self._failpoints.reach("handle.statement")
        return rows

    async def _run(self, sql: str, parameters: Parameters) -> Rows:
        statement = _checked(sql, parameters)
        return await (await self._open()).run(statement, parameters)

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. Return True for the first mark under its key."""
        return await self._exclusively(self._mark_effect, job, key, reference)

    async def _mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        return await (await self._open()).mark_effect(job, key, reference)

    async def settle(self, token: str, job: int) -> bool:
        """Settle the job as done and commit. Return False if no transaction began."""
        async with self._lock:
            transaction = self._close()
            if transaction is None:
                return False
            await transaction.settle(token, job)
            await transaction.commit()
            return True

    async def close(self) -> None:
        """Refuse further statements. Raise the error that the handler swallowed, if any."""
        async with self._lock:
            self._close()

    async def commit(self) -> None:
        """Commit what was written, without settling a job."""
        async with self._lock:
            transaction = self._close()
            if transaction is not None:
                await transaction.commit()

    async def __aenter__(self) -> Self:
        """Return the unit of work, which has not begun."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel a statement that still runs, and roll back what was not committed."""
        self._is_closed = True
        try:
            writer = self._writer
            if writer is not None and writer is not asyncio.current_task():
                writer.cancel()
                await asyncio.wait([writer])
        finally:
            context, self._context = self._context, None
            if context is not None:
                await context.__aexit__(None, None, None)

    async def _exclusively(self, operation: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
        """Run one operation at a time, and remember the first failure."""
        async with self._lock:
            self._writer = asyncio.current_task()
            started = self._clock.monotonic()
            try:
                return await operation(*arguments)
            except Exception as error:
                self._failure = self._failure or error
                raise
            except BaseException:
                self._failure = self._failure or OncewardError(_CANCELLED)
                raise
            finally:
                self._writer = None
                self.statement_seconds += self._clock.monotonic() - started

    def _close(self) -> StoreTransaction | None:
        if self._failure is not None:  # the handler swallowed it
            raise self._failure
        self._is_closed = True
        return self._transaction

    async def _open(self) -> StoreTransaction:
        if self._is_closed:
            message = "the transaction is over; a later statement cannot be part of it"
            raise TransactionMisuse(message)
        if self._failure is not None:
            message = f"an earlier statement failed ({self._failure}); the transaction has ended"
            raise TransactionMisuse(message)
        if self._transaction is None:
            self._context = self._begin(self.location)
            self._transaction = await self._context.__aenter__()
        return self._transaction


class Transaction:
    """The handler's transaction. Its writes and the job's `done` commit together or not at all.

    It begins with the first statement and ends when the handler returns. Parameters are named,
    ``:name``, on both stores.
    """

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit

    async def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        """Run a statement and return the number of affected rows."""
        return (await self._unit.run(sql, parameters or {})).count

    async def fetch(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement and return its rows, each a dict by column name."""
        return (await self._unit.run(sql, parameters or {})).rows

    async def fetch_one(self, sql: str, parameters: Parameters | None = None) -> Row | None:
        """Run a statement and return its first row, or None."""
        rows = await self.fetch(sql, parameters)
        return rows[0] if rows else None

    async def fetch_value(self, sql: str, parameters: Parameters | None = None) -> Any:
        """Run a statement and return the first column of its first row, or None."""
        row = await self.fetch_one(sql, parameters)
        return next(iter(row.values())) if row else None


def _checked(sql: str, parameters: Parameters) -> Sql:
    """Parse one statement. Raise TransactionMisuse if it is not for handlers."""
    statements = parse(sql)
    if len(statements) != 1:
        message = f"one statement at a time; this text has {len(statements)}"
        raise TransactionMisuse(message)
    (statement,) = statements
    if statement.keyword in _REFUSED_KEYWORDS:
        message = f"{statement.keyword} is not for handlers: the transaction ends with the handler"
        raise TransactionMisuse(message)
    if missing := statement.names - parameters.keys():
        message = f"no value is given for :{', :'.join(sorted(missing))}"
        raise TransactionMisuse(message)
    return statement
