"""The clock of this process, for the time windows of signatures and for timeouts.

Stored times, and times compared with them, come from the database's clock instead. SQLite has no
clock: there, the single process that serves the file provides the time.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's monotonic clock stands still while the machine is suspended; that of macOS does not."""


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Return the seconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start; they never decrease."""

    def boottime(self) -> float:
        """Return the seconds since an arbitrary start, with those of a suspended machine."""

    def cpu_time(self) -> float:
        """Return the seconds of CPU time that this process has used."""


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> float:
        """Return the seconds since 1970, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start; they never decrease."""
        return time.monotonic()

    def boottime(self) -> float:
        """Return the seconds since an arbitrary start, with those of a suspended machine."""
        return time.clock_gettime(_BOOT_CLOCK)

    def cpu_time(self) -> float:
        """Return the seconds of CPU time that this process has used."""
        return time.process_time()
