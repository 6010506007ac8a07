"""Work spread over the iterations of the event loop."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable


class TickQueue:
    """Calls queued for the next iterations of the event loop, at most `limit` per iteration."""

    def __init__(self, *, limit: int = sys.maxsize) -> None:
        self._limit = limit
        self._queued: deque[Callable[[], object]] = deque()

    def add(self, call: Callable[[], object]) -> None:
        """Queue a call. It runs in the next iteration unless `limit` calls are ahead of it."""
        if not self._queued:
            asyncio.get_running_loop().call_soon(self._run)
        self._queued.append(call)

    def _run(self) -> None:
        try:
            for _ in range(min(len(self._queued), self._limit)):
                self._queued.popleft()()
        finally:  # a call that raises must not stop the calls behind it
            if self._queued:
                asyncio.get_running_loop().call_soon(self._run)
