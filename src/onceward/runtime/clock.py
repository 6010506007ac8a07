"""The process's own clock: for signatures' time windows and for waiting.

Everything that is stored or compared with what is stored uses the database's clock. SQLite has none
of its own: there, the one process that serves the file gives the time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never runs backwards."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never runs backwards."""
        return time.monotonic()
