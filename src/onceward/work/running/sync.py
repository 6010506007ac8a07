"""The blocking objects that sync handlers get, around the async ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from onceward.ports import Row
from onceward.work.running.effects import EffectContext
from onceward.work.running.transaction import Parameters, UnitOfWork

T = TypeVar("T")


class SyncTransaction:
    """The transaction of a sync handler; see Transaction."""

    def __init__(self, unit: UnitOfWork, loop: asyncio.AbstractEventLoop) -> None:
        self._unit = unit
        self._loop = loop

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        """Run a statement and return the number of affected rows."""
        return wait_for(self._unit.execute(sql, parameters), self._loop)

    def fetch(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement and return its rows, each a dict by column name."""
        return wait_for(self._unit.fetch(sql, parameters), self._loop)

    def fetch_one(self, sql: str, parameters: Parameters | None = None) -> Row | None:
        """Run a statement and return its first row, or None."""
        return wait_for(self._unit.fetch_one(sql, parameters), self._loop)

    def fetch_value(self, sql: str, parameters: Parameters | None = None) -> Any:
        """Run a statement and return the first column of its first row, or None."""
        return wait_for(self._unit.fetch_value(sql, parameters), self._loop)


class SyncEffects:
    """The effects of a sync handler; see Effects."""

    def __init__(self, context: EffectContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def once(self, key: str, *, reference: str | None = None) -> bool:
        """Mark an effect in the handler's transaction. Return True for the first mark."""
        return wait_for(self._context.once(key, reference), self._loop)

    def call(self, key: str, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call a function that acts on another system, once for this key in the whole inbox."""
        return wait_for(self._context.call(key, function, arguments, named), self._loop)


def wait_for(call: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Run a call in the loop of the worker, and wait for its result in the handler's thread."""
    return asyncio.run_coroutine_threadsafe(call, loop).result()
