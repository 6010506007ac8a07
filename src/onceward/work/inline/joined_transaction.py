"""One transaction for several handlers that run one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Self, TypeVar

from onceward.errors import TransactionIdleTimeout
from onceward.ports import OnIdleTimeout, StoreTransaction, ignore_idle_timeout

T = TypeVar("T", bound=StoreTransaction)


class JoinedTransaction(Generic[T]):
    """A transaction that the units of work of several handlers join.

    It begins with the first statement, and is rolled back at the end unless it is committed.
    """

    def __init__(
        self,
        begin: Callable[[Callable[[], str], OnIdleTimeout], AbstractAsyncContextManager[T]],
    ) -> None:
        self._begin = begin
        self._context: AbstractAsyncContextManager[T] | None = None
        self._transaction: T | None = None
        self._location: Callable[[], str] = str
        self._on_idle_timeout: OnIdleTimeout = ignore_idle_timeout

    async def __aenter__(self) -> Self:
        """Return the transaction, which has not begun."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Roll back what was not committed."""
        context, self._context = self._context, None
        if context is not None:
            await context.__aexit__(None, None, None)

    @property
    def has_begun(self) -> bool:
        """Whether a statement has begun the transaction."""
        return self._transaction is not None

    def join(
        self, location: Callable[[], str], on_idle_timeout: OnIdleTimeout
    ) -> AbstractAsyncContextManager[StoreTransaction]:
        """Return the transaction for one more handler, whose current line is `location`."""
        self._location = location
        self._on_idle_timeout = on_idle_timeout
        return _JoinedPart(self.open)

    async def open(self) -> T:
        """Return the transaction; begin it if no statement has."""
        if self._transaction is None:
            self._context = self._begin(self._current_location, self._end_handler)
            self._transaction = await self._context.__aenter__()
        return self._transaction

    def _current_location(self) -> str:
        """Return the line of the handler that joined last."""
        return self._location()

    def _end_handler(self, error: TransactionIdleTimeout) -> None:
        """End the handler that joined last."""
        self._on_idle_timeout(error)


class _JoinedPart(AbstractAsyncContextManager[StoreTransaction]):
    """One handler's part of the transaction: leaving it does not end the transaction."""

    def __init__(self, open_: Callable[[], Awaitable[StoreTransaction]]) -> None:
        self._open = open_

    async def __aenter__(self) -> StoreTransaction:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        pass
