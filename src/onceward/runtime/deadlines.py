"""Many waits of the same length under one timer: a timer each would cost more than the waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Wait(Protocol):
    """Something that ends, such as a future."""

    def done(self) -> bool:
        """Whether it has ended."""


W = TypeVar("W", bound=Wait)


class Deadlines(Generic[W]):
    """Gives to `expire` what is not done after so many seconds."""

    def __init__(self, seconds: float, expire: Callable[[W], object]) -> None:
        self._seconds = seconds
        self._expire = expire
        self._waits: deque[tuple[float, W]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, wait: W) -> None:
        """Begin to wait for one more."""
        loop = asyncio.get_running_loop()
        at = loop.time() + self._seconds
        while self._waits and self._waits[0][1].done():  # nothing that is done is held for long
            self._waits.popleft()
        self._waits.append((at, wait))
        if self._timer is None:
            self._timer = loop.call_at(at, self._expire_due)

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire_due(self) -> None:
        """End what has waited too long, and look again when the next one will have."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waits and (self._waits[0][0] <= now or self._waits[0][1].done()):
            _, wait = self._waits.popleft()
            if not wait.done():
                self._expire(wait)
        following = self._waits[0][0] if self._waits else None
        self._timer = None if following is None else loop.call_at(following, self._expire_due)
