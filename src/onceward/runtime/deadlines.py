"""One timer for many waits of equal length: a timer for each cost more than the wait itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Wait(Protocol):
    """Something that finishes, such as a future."""

    def done(self) -> bool:
        """Return whether the wait is over."""


W = TypeVar("W", bound=Wait)


class Deadlines(Generic[W]):
    """Calls `expire` with each wait that is not done after `seconds`."""

    def __init__(self, seconds: float, expire: Callable[[W], object]) -> None:
        self._seconds = seconds
        self._expire = expire
        self._waits: deque[tuple[float, W]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, wait: W) -> None:
        """Start the deadline of a wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        while self._waits and self._waits[0][1].done():  # finished waits must not pile up
            self._waits.popleft()
        self._waits.append((deadline, wait))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire_due)

    def unfinished(self) -> list[W]:
        """Return the waits that are not done."""
        return [wait for _, wait in self._waits if not wait.done()]

    def close(self) -> None:
        """Cancel all deadlines."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire_due(self) -> None:
        """Expire the waits that are due, then set the timer for the next one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waits and (self._waits[0][0] <= now or self._waits[0][1].done()):
            _, wait = self._waits.popleft()
            if not wait.done():
                self._expire(wait)
        following = self._waits[0][0] if self._waits else None
        self._timer = None if following is None else loop.call_at(following, self._expire_due)
