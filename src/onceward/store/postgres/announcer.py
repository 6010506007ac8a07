"""Notifications of new jobs, sent after the commit that created them.

PostgreSQL commits transactions that notify one after the other, over all databases of the server:
inside the recording transaction, a notification would make every receiver wait for the disk writes
of all others. A notification that is lost with its process is no harm, because workers also poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from onceward.errors import StoreError

PAUSE_SECONDS: Final = 0.001
"""Pause after a notification. Jobs that are created meanwhile share the next one."""

MAX_PAUSE_SECONDS: Final = 0.004
"""The pause doubles up to this while jobs are created in every pause: each notification costs every
worker a claim."""

CLOSE_SECONDS: Final = 1.0
"""Time to send the last notification."""


class Announcer:
    """Sends at most one notification at a time, and one for many commits."""

    def __init__(self, notify: Callable[[], Awaitable[None]]) -> None:
        self._notify = notify
        self._is_pending = False
        self._task: asyncio.Task[None] | None = None

    def announce(self) -> None:
        """Notify soon, without waiting for it."""
        self._is_pending = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Send the pending notification, and end."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            if self._task is not None:
                self._task.cancel()

    async def _run(self) -> None:
        seconds = PAUSE_SECONDS
        try:
            while self._is_pending:
                self._is_pending = False
                with suppress(StoreError):  # recording reports the outage, and workers poll
                    await self._notify()
                await asyncio.sleep(seconds)
                seconds = min(2 * seconds, MAX_PAUSE_SECONDS)
        finally:
            self._task = None
