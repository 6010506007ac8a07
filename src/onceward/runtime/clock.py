"""The clock of this process, for the time windows of signatures and for timeouts.

Stored times, and times compared with them, come from the database's clock instead. SQLite has no
clock: there, the single process that serves the file provides the time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Return the seconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start; they never decrease."""


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> float:
        """Return the seconds since 1970, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start; they never decrease."""
        return time.monotonic()
