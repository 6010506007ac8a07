"""Locks by key, within one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

Key = tuple[str, str]


class KeyLocks:
    """Locks by key, each granted in the order of the requests for it.

    A lock exists only while a task holds it or waits for it.
    """

    def __init__(self) -> None:
        self._locks: dict[Key, asyncio.Lock] = {}
        self._users: Counter[Key] = Counter()

    @asynccontextmanager
    async def hold(self, keys: Iterable[Key]) -> AsyncIterator[None]:
        """Wait for the locks of some keys, and hold them. Their order excludes a deadlock."""
        async with AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._hold(key))
            yield

    @asynccontextmanager
    async def _hold(self, key: Key) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
