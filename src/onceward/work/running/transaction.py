"""A handler's transaction: `tx` for the handler, the unit of work for the worker."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from types import FrameType
from typing import Any, Final, NoReturn, Self, TypeVar, TypeVarTuple

from onceward.errors import (
    HandlerTimeout,
    OncewardError,
    TransactionIdleTimeout,
    TransactionMisuse,
)
from onceward.model.jobs import Fail
from onceward.ports import OnIdleTimeout, Row, Rows, StoreTransaction, ignore_idle_timeout
from onceward.runtime.clock import Clock
from onceward.runtime.code_location import awaiting_location
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.runtime.sql_text import Sql, find_placeholder, parse
from onceward.runtime.value_kind import kind_of
from onceward.work.running.pending_calls import PendingCalls

_log = logging.getLogger("onceward.work")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Parameters = Mapping[str, Any]
Begin = Callable[[Callable[[], str], OnIdleTimeout], AbstractAsyncContextManager[StoreTransaction]]
"""Begins a transaction. Its arguments return the handler's current line, for error messages, and
end the handler when the transaction is rolled back because the handler waits for too long."""
LastStep = Callable[[StoreTransaction], Awaitable[None]]
"""Writes what commits with the job, after the handler has returned."""

_TRANSACTION_KEYWORDS: Final = frozenset(
    {"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE", "SAVEPOINT", "RELEASE"}
)
_CONNECTION_KEYWORDS: Final = frozenset({"PRAGMA", "ATTACH", "DETACH", "VACUUM", "DEALLOCATE"})

_OVER: Final = "the transaction is over; a later statement cannot be part of it"
_RETURNED: Final = (
    "the transaction is over, because the handler has returned; await every task that uses tx or "
    "effects before it returns"
)
_CALL_AFTER_STATEMENT: Final = (
    "effects.call comes before the first statement of tx and before effects.once: no outside call "
    "may wait inside an open transaction"
)
_STATEMENT_DURING_CALL: Final = (
    "effects.call has not returned; await it before the first statement of tx, because no outside "
    "call may wait inside an open transaction"
)
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
        self.on_idle_timeout: OnIdleTimeout = ignore_idle_timeout
        """Ends the handler when the store has rolled its idle transaction back."""
        self.statement_seconds = 0.0
        """The total time that its statements took."""
        self.calls = PendingCalls()
        """The calls of the handler that may not have been awaited yet."""
        self._lock = asyncio.Lock()
        self._context: AbstractAsyncContextManager[StoreTransaction] | None = None
        self._transaction: StoreTransaction | None = None
        self._failure: Exception | None = None
        self._is_closed = False
        self._has_returned = False
        self._writer: asyncio.Task[Any] | None = None
        self._open_calls = 0

    @contextmanager
    def outside_call(self) -> Iterator[None]:
        """Keep the transaction from beginning meanwhile. Raise TransactionMisuse if it has."""
        if self._is_closed:
            self._fail(_RETURNED if self._has_returned else _OVER)
        if self._context is not None:
            self._fail(_CALL_AFTER_STATEMENT)
        self._open_calls += 1
        try:
            yield
        finally:
            self._open_calls -= 1

    async def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        """Run a statement of the handler and return the number of affected rows."""
        return (await self._run(sql, parameters)).count

    async def fetch(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement of the handler and return its rows."""
        return (await self._run(sql, parameters)).rows

    async def fetch_one(self, sql: str, parameters: Parameters | None = None) -> Row | None:
        """Run a statement of the handler and return its first row, or None."""
        rows = (await self._run(sql, parameters)).rows
        return rows[0] if rows else None

    async def fetch_value(self, sql: str, parameters: Parameters | None = None) -> Any:
        """Run a statement of the handler and return the first column of its first row, or None."""
        row = await self.fetch_one(sql, parameters)
        return next(iter(row.values())) if row else None

    async def _run(self, sql: str, parameters: Parameters | None) -> Rows:
        rows = await self._exclusively(self._run_statement, sql, parameters)
        self._failpoints.reach("handle.statement")
        return rows

    async def _run_statement(self, sql: str, parameters: Parameters | None) -> Rows:
        values = {} if parameters is None else parameters
        statement = _checked(sql, values)
        return await (await self._open()).run(statement, values)

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. Return True for the first mark under its key."""
        return await self._exclusively(self._mark_effect, job, key, reference)

    async def _mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        return await (await self._open()).mark_effect(job, key, reference)

    async def settle(self, token: str, job: int, last_step: LastStep | None = None) -> bool:
        """Settle the job as done and commit. Return False if no transaction began.

        A `last_step` runs right before that. It always has a transaction.
        """
        async with self._lock:
            transaction = self._close()
            if last_step is not None:
                transaction = await self._begin_once()
                await last_step(transaction)
            if transaction is None:
                return False
            await transaction.commit_done({token: (job,)})
            return True

    async def settle_all(self, leases: Mapping[str, Sequence[int]]) -> None:
        """Settle the jobs of one or more leases as done and commit: all of them, or none."""
        async with self._lock:
            self._close()
            await (await self._begin_once()).commit_done(leases)

    async def settle_failed(
        self, token: str, job: int, failure: Fail, elapsed_seconds: float
    ) -> bool:
        """Settle the job as failed and commit, in a transaction in any case.

        Return False, and commit nothing, if the lease was lost or the job need not fail after all.
        """
        async with self._lock:
            self._close()
            transaction = await self._begin_once()
            if not await transaction.settle_failed(token, job, failure, elapsed_seconds):
                return False
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

    async def __aexit__(
        self, _kind: object = None, error: BaseException | None = None, _traceback: object = None
    ) -> None:
        """Cancel a statement that still runs, and roll back what was not committed.

        Raise TransactionMisuse if the handler's error is due to a call that it did not await.
        """
        self._is_closed = True
        misuse = self.calls.take_misuse()
        try:
            writer = self._writer
            if writer is not None and writer is not asyncio.current_task():
                writer.cancel()
                await asyncio.wait([writer])
        finally:
            context, self._context = self._context, None
            if context is not None:
                await context.__aexit__(None, None, None)
        if misuse is not None and self._may_cause(error):
            raise misuse from error

    def _may_cause(self, error: BaseException | None) -> bool:
        """Return whether a call that was not awaited may have caused the handler's error.

        After a timeout or a failed statement, the handler may not have reached its ``await``.
        """
        return (
            self._failure is None
            and isinstance(error, Exception)
            and not isinstance(error, HandlerTimeout | TransactionIdleTimeout)
        )

    async def _exclusively(self, operation: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
        """Run one operation at a time, and remember the first failure."""
        async with self._lock:
            self._writer = asyncio.current_task()
            started = self._clock.monotonic()
            try:
                return await operation(*arguments)
            except TransactionMisuse as error:
                misuse = self._with_line(error, sys._getframe())  # noqa: SLF001
                self._failure = self._failure or misuse
                raise misuse from None
            except Exception as error:
                self._failure = self._failure or error
                raise
            except BaseException:
                self._failure = self._failure or OncewardError(_CANCELLED)
                raise
            finally:
                self._writer = None
                self.statement_seconds += self._clock.monotonic() - started

    def _fail(self, text: str) -> NoReturn:
        """Raise TransactionMisuse, and let the attempt fail even if the handler swallows it."""
        misuse = self._with_line(TransactionMisuse(text), sys._getframe(1))  # noqa: SLF001
        self._failure = self._failure or misuse
        raise misuse

    def _with_line(self, error: TransactionMisuse, frame: FrameType) -> TransactionMisuse:
        """Return the error with the line of the handler's code that awaits `frame`.

        Log it if the handler has returned: nothing else may ever read the error of its task.
        """
        line = awaiting_location(frame) or self.location()
        text = f"{line}: {error}"
        if self._has_returned:
            message = "%s: %s; the job ended without this statement"
            _log.error(message, self.location(), text, extra=LogFields(error=text))
        return TransactionMisuse(text)

    def _close(self) -> StoreTransaction | None:
        if self._failure is None:
            self._failure = self.calls.take_misuse()
        if self._failure is not None:  # the handler swallowed it
            raise self._failure
        self._is_closed = self._has_returned = True
        return self._transaction

    async def _open(self) -> StoreTransaction:
        if self._is_closed:
            raise TransactionMisuse(_RETURNED if self._has_returned else _OVER)
        if self._failure is not None:
            message = f"an earlier statement failed ({self._failure}); the transaction has ended"
            raise TransactionMisuse(message)
        if self._open_calls:
            raise TransactionMisuse(_STATEMENT_DURING_CALL)
        return await self._begin_once()

    async def _begin_once(self) -> StoreTransaction:
        if self._transaction is None:
            self._context = self._begin(self.location, self.on_idle_timeout)
            self._transaction = await self._context.__aenter__()
        return self._transaction


class Transaction:
    """The handler's transaction. Its writes and the job's `done` commit together or not at all.

    It begins with the first statement and ends when the handler returns. Parameters are named,
    ``:name``, on both stores.
    """

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit

    def execute(self, sql: str, parameters: Parameters | None = None) -> Coroutine[Any, Any, int]:
        """Run a statement and return the number of affected rows."""
        call = self._unit.execute(sql, parameters)
        return self._unit.calls.note("tx.execute", call, sys._getframe(1))  # noqa: SLF001

    def fetch(
        self, sql: str, parameters: Parameters | None = None
    ) -> Coroutine[Any, Any, list[Row]]:
        """Run a statement and return its rows, each a dict by column name."""
        call = self._unit.fetch(sql, parameters)
        return self._unit.calls.note("tx.fetch", call, sys._getframe(1))  # noqa: SLF001

    def fetch_one(
        self, sql: str, parameters: Parameters | None = None
    ) -> Coroutine[Any, Any, Row | None]:
        """Run a statement and return its first row, or None."""
        call = self._unit.fetch_one(sql, parameters)
        return self._unit.calls.note("tx.fetch_one", call, sys._getframe(1))  # noqa: SLF001

    def fetch_value(
        self, sql: str, parameters: Parameters | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Run a statement and return the first column of its first row, or None."""
        call = self._unit.fetch_value(sql, parameters)
        return self._unit.calls.note("tx.fetch_value", call, sys._getframe(1))  # noqa: SLF001


def _checked(sql: object, parameters: object) -> Sql:
    """Parse one statement. Raise TransactionMisuse if it or its parameters are unusable."""
    if not isinstance(sql, str):
        message = f"the statement is {kind_of(sql)}; pass the SQL as a str"
        raise TransactionMisuse(message)
    statements = parse(sql)
    if len(statements) != 1:
        message = f"one statement at a time; this text has {len(statements)}"
        raise TransactionMisuse(message)
    (statement,) = statements
    if statement.keyword in _TRANSACTION_KEYWORDS:
        message = f"{statement.keyword} is not for handlers: the transaction ends with the handler"
        raise TransactionMisuse(message)
    if statement.keyword in _CONNECTION_KEYWORDS:
        message = f"{statement.keyword} is not for handlers: other jobs use the same connection"
        raise TransactionMisuse(message)
    if not isinstance(parameters, dict) and not isinstance(parameters, Mapping):  # dict is quicker
        message = f"parameters are a dict by name, not {kind_of(parameters)}: {_usage(statement)}"
        raise TransactionMisuse(message)
    if missing := statement.names - parameters.keys():
        message = f"no value is given for :{', :'.join(sorted(missing))}"
        raise TransactionMisuse(message)
    for name, hint in statement.lookalikes:
        if name in parameters:
            raise TransactionMisuse(hint)
    if parameters and not statement.names and find_placeholder(sql):
        message = f"parameters are named: {_usage(statement)}"
        raise TransactionMisuse(message)
    return statement


def _usage(statement: Sql) -> str:
    """Return how to pass the parameters of a statement, by its own names if it has any."""
    if statement.names:
        return "pass {" + ", ".join(f'"{name}": …' for name in sorted(statement.names)) + "}"
    placeholder = find_placeholder(statement.text)
    if placeholder is not None:
        return f'write :name instead of {placeholder}, and pass {{"name": …}}'
    return 'write :name in the statement, and pass {"name": …}'
