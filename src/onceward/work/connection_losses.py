"""The jobs whose runs lost their connection to the database, and how often in a row."""

from __future__ import annotations

from typing import Final

MAX_JOBS: Final = 10_000


class ConnectionLosses:
    """Counts lost connections by job, until the job ends in another way.

    An outage ends many connections, but seldom those of one job again and again. A handler that
    ends its own connection does so each time. The count is of this process alone.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, job: int) -> int:
        """Count a lost connection and return the number of those in a row."""
        count = self._counts.pop(job, 0) + 1
        if len(self._counts) >= MAX_JOBS:
            del self._counts[next(iter(self._counts))]  # the oldest
        self._counts[job] = count
        return count

    def clear(self, job: int) -> None:
        """Forget a job that ended in another way."""
        self._counts.pop(job, None)
