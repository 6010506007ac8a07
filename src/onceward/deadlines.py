"""Many waits of the same length under one timer: a timer each would cost more than the waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Deadline:
    """One wait. Once it is `over`, nothing happens any more."""

    __slots__ = ("at", "expire", "over")

    def __init__(self, at: float, expire: Callable[[], object]) -> None:
        self.at = at
        self.expire = expire
        self.over = False


class Deadlines:
    """Calls back what is not over after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: deque[Deadline] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, expire: Callable[[], object]) -> Deadline:
        """Begin to wait."""
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop.time() + self._seconds, expire)
        while self._waiting and self._waiting[0].over:  # nothing that is over is held for long
            self._waiting.popleft()
        self._waiting.append(deadline)
        if self._timer is None:
            self._timer = loop.call_at(deadline.at, self._look)
        return deadline

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """End what has waited too long, and look again when the next one will have."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiting and (self._waiting[0].over or self._waiting[0].at <= now):
            deadline = self._waiting.popleft()
            if not deadline.over:
                deadline.over = True
                deadline.expire()
        following = self._waiting[0].at if self._waiting else None
        self._timer = None if following is None else loop.call_at(following, self._look)
