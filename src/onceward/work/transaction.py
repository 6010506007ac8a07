"""What a handler is given as `tx`: one transaction with the job's done."""

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
"""Begins a transaction, for a handler that says where it is."""

_EDGES: Final = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE"})
_INSIDE: Final = frozenset({"SAVEPOINT", "RELEASE"})
_BESIDE: Final = frozenset({"PRAGMA", "ATTACH", "DETACH", "VACUUM"})
_CONTROL: Final = _EDGES | _INSIDE | _BESIDE

_BROKEN_OFF: Final = "a statement was broken off, done or not: nothing can be committed"


class UnitOfWork:
    """The one transaction of one attempt: begun when first needed, ended by Onceward alone.

    Leave it, and what was not committed is rolled back. A statement that fails ends it, on both
    stores: a handler that swallows the error cannot commit the rest.
    """

    def __init__(self, begin: Begin, clock: Clock, failpoints: Failpoints) -> None:
        self._begin = begin
        self._failpoints = failpoints
        self._clock = clock
        self.location: Callable[[], str] = lambda: "an unknown place"
        """Where its handler is now."""
        self.seconds = 0.0
        """How long its statements took, all in all."""
        self._lock = asyncio.Lock()
        self._context: AbstractAsyncContextManager[StoreTransaction] | None = None
        self._session: StoreTransaction | None = None
        self._failure: Exception | None = None
        self._is_over = False
        self._writer: asyncio.Task[Any] | None = None

    async def run(self, sql: str, parameters: Parameters) -> Rows:
        """Run one statement of the handler."""
        rows = await self._writing(self._run, sql, parameters)
        self._failpoints.reach("handle.statement")
        return rows

    async def _run(self, sql: str, parameters: Parameters) -> Rows:
        statement = _checked(sql, parameters)
        return await (await self._open()).run(statement, parameters)

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. True for the first, over all events."""
        return await self._writing(self._mark_effect, job, key, reference)

    async def _mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        return await (await self._open()).mark_effect(job, key, reference)

    async def settle(self, token: str, job: int) -> bool:
        """Write the job's done and commit. False when nothing was begun: settle it elsewhere."""
        async with self._lock:
            session = self._end()
            if session is None:
                return False
            await session.settle(token, job)
            await session.commit()
            return True

    async def end(self) -> None:
        """Let nothing more be written. Raises what the handler swallowed."""
        async with self._lock:
            self._end()

    async def commit(self) -> None:
        """Commit what was written, without a job."""
        async with self._lock:
            session = self._end()
            if session is not None:
                await session.commit()

    async def __aenter__(self) -> Self:
        """Nothing begins here."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Roll back what was not committed, and break off what still runs in it."""
        self._is_over = True
        try:
            writer = self._writer
            if writer is not None and writer is not asyncio.current_task():
                writer.cancel()
                await asyncio.wait([writer])
        finally:
            context, self._context = self._context, None
            if context is not None:
                await context.__aexit__(None, None, None)

    async def _writing(self, write: Callable[[*Ts], Awaitable[T]], *given: *Ts) -> T:
        """Write something, alone; what goes wrong is remembered."""
        async with self._lock:
            self._writer = asyncio.current_task()
            began = self._clock.monotonic()
            try:
                return await write(*given)
            except Exception as error:
                self._failure = self._failure or error
                raise
            except BaseException:
                self._failure = self._failure or OncewardError(_BROKEN_OFF)
                raise
            finally:
                self._writer = None
                self.seconds += self._clock.monotonic() - began

    def _end(self) -> StoreTransaction | None:
        if self._failure is not None:  # the handler swallowed it
            raise self._failure
        self._is_over = True
        return self._session

    async def _open(self) -> StoreTransaction:
        if self._is_over:
            message = "the transaction is over; what comes after it cannot be part of it"
            raise TransactionMisuse(message)
        if self._failure is not None:
            message = f"a statement failed before ({self._failure}); the transaction cannot go on"
            raise TransactionMisuse(message)
        if self._session is None:
            self._context = self._begin(self.location)
            self._session = await self._context.__aenter__()
        return self._session


class Transaction:
    """One transaction with the job's done: both commit, or neither does.

    It begins at its first statement and ends when the handler returns. Parameters are named,
    ``:name``, on both stores.
    """

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit

    async def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        """Run a statement; answers with the number of rows it touched."""
        return (await self._unit.run(sql, parameters or {})).count

    async def fetch(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement; answers with its rows, each a dict by column name."""
        return (await self._unit.run(sql, parameters or {})).rows

    async def fetch_one(self, sql: str, parameters: Parameters | None = None) -> Row | None:
        """Run a statement; answers with its first row, or None."""
        rows = await self.fetch(sql, parameters)
        return rows[0] if rows else None

    async def fetch_value(self, sql: str, parameters: Parameters | None = None) -> Any:
        """Run a statement; answers with the first column of its first row, or None."""
        row = await self.fetch_one(sql, parameters)
        return next(iter(row.values())) if row else None


def _checked(sql: str, parameters: Parameters) -> Sql:
    statements = parse(sql)
    if len(statements) != 1:
        message = f"one statement at a time; this text has {len(statements)}"
        raise TransactionMisuse(message)
    (statement,) = statements
    if statement.keyword in _CONTROL:
        message = f"{statement.keyword} is not for handlers: the transaction ends with the handler"
        raise TransactionMisuse(message)
    if missing := statement.names - parameters.keys():
        message = f"the statement names :{', :'.join(sorted(missing))}, which was not given"
        raise TransactionMisuse(message)
    return statement
