"""A warning about handlers that take the CPU from the requests of their process."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import Final, NamedTuple

from onceward.runtime.clock import Clock
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.workers")

DELAY_INTERVAL_SECONDS: Final = 0.5
WINDOW: Final = 60
"""Samples: half a minute of them."""
BUSY_SHARE: Final = 0.8
"""The share of one core from which a process is short of CPU time."""
DELAYED_SECONDS: Final = 0.025
DELAYED_SHARE: Final = 0.25
"""The share of delayed samples from which it is a pattern."""
WARNING_INTERVAL_SECONDS: Final = 600.0

_SLEEP_SECONDS: Final = 0.02
_ADVICE: Final = (
    "Run the handlers in processes of their own: `onceward serve app.py --workers 0` receives, and "
    "`onceward work app.py` works"
)
_SQLITE_ADVICE: Final = (
    "SQLite supports one process: use PostgreSQL, and run the handlers in a process of their own "
    "with `onceward work app.py`"
)


class Sample(NamedTuple):
    """One look at the event loop."""

    delay_seconds: float
    """How much later than it asked a task was resumed."""
    at: float
    cpu_seconds: float
    """The CPU time that the process has used so far."""


class DelayWatch:
    """Warns when a process that receives and runs handlers responds late for want of CPU time."""

    def __init__(self, clock: Clock, *, is_single_process: bool) -> None:
        self._clock = clock
        self._advice = _SQLITE_ADVICE if is_single_process else _ADVICE
        self._samples: deque[Sample] = deque(maxlen=WINDOW)
        self._warned_at = -math.inf

    async def take_sample(self) -> None:
        """Measure the delay of the event loop; warn if it lasts."""
        asked_at = self._clock.monotonic()
        await asyncio.sleep(_SLEEP_SECONDS)
        now = self._clock.monotonic()
        self.add(Sample(now - asked_at - _SLEEP_SECONDS, now, self._clock.cpu_time()))

    def add(self, sample: Sample) -> None:
        """Add a sample; warn if requests have waited for half a minute, at most once in a while."""
        self._samples.append(sample)
        if self._is_short_of_cpu() and sample.at - self._warned_at >= WARNING_INTERVAL_SECONDS:
            self._warned_at = sample.at
            self._warn()

    def _is_short_of_cpu(self) -> bool:
        if len(self._samples) < WINDOW:
            return False
        first, last = self._samples[0], self._samples[-1]
        is_busy = last.cpu_seconds - first.cpu_seconds >= BUSY_SHARE * (last.at - first.at)
        delayed = sum(sample.delay_seconds > DELAYED_SECONDS for sample in self._samples)
        return is_busy and delayed >= DELAYED_SHARE * WINDOW

    def _warn(self) -> None:
        delays = sorted(sample.delay_seconds for sample in self._samples)
        seconds = round(delays[WINDOW * 9 // 10], 3)
        _log.warning(
            "handlers take the CPU from the requests of this process, which often wait for %d ms. "
            "%s",
            1000 * seconds,
            self._advice,
            extra=LogFields(seconds=seconds),
        )
