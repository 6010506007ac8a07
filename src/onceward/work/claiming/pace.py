"""The pace of a handler: how long its jobs take and how many fail."""

from __future__ import annotations

from typing import Final

SLOW_SECONDS: Final = 0.25
"""The mean duration above which the jobs of a handler are not claimed ahead."""

MIN_WEIGHT: Final = 0.1
"""The share that is left to a handler whose jobs all fail, in relation to a healthy one."""

_FIRST_MEAN_SECONDS: Final = 0.01
_LEAST_COST_SECONDS: Final = 0.0005
_SAMPLE_WEIGHT: Final = 0.1


class HandlerPace:
    """Moving averages over the last jobs of one handler."""

    def __init__(self) -> None:
        self.is_known = False
        """Whether a job has ended. The first one may take any time."""
        self.mean_seconds = _FIRST_MEAN_SECONDS
        self._failures = 0.0

    def observe(self, seconds: float, *, failed: bool) -> None:
        """Adapt to a job that ended."""
        weight = _SAMPLE_WEIGHT if self.is_known else 1.0
        self.mean_seconds += weight * (seconds - self.mean_seconds)
        self._failures += _SAMPLE_WEIGHT * (failed - self._failures)
        self.is_known = True

    @property
    def is_slow(self) -> bool:
        """Whether its jobs take long enough to keep others waiting."""
        return self.mean_seconds > SLOW_SECONDS

    @property
    def weight(self) -> float:
        """The share of the handler: less than 1 if jobs fail."""
        return 1.0 - (1.0 - MIN_WEIGHT) * self._failures

    @property
    def cost_seconds(self) -> float:
        """The time that a job is charged for, so that each handler gets the same share of time."""
        return max(self.mean_seconds, _LEAST_COST_SECONDS) / self.weight
