"""The queue for SQLite's only write transaction: the receiver goes first."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

RECEIVER_STREAK_MAX: Final = 4
"""How often in succession the receiver may overtake a waiting worker."""


class WriteGate:
    """A lock that prefers the receiver, without starving the workers."""

    def __init__(self) -> None:
        self._is_held = False
        self._streak = 0
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._workers: deque[asyncio.Future[None]] = deque()

    async def acquire(self, *, receiver: bool = False) -> None:
        """Wait for the gate. The caller must release it."""
        if not self._is_held:
            self._is_held = True
            return
        queue = self._receivers if receiver else self._workers
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            else:
                with suppress(ValueError):
                    queue.remove(waiter)
            raise

    def release(self) -> None:
        """Pass the gate to the next waiter."""
        waiter = self._next()
        if waiter is None:
            self._is_held = False
        else:
            waiter.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        while self._receivers or self._workers:
            receiver_first = self._receivers and (
                self._streak < RECEIVER_STREAK_MAX or not self._workers
            )
            self._streak = self._streak + 1 if receiver_first else 0
            waiter = (self._receivers if receiver_first else self._workers).popleft()
            if not waiter.done():
                return waiter
        return None
