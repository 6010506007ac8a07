"""The jobs whose runs lost their connection to the database, and how often in a row."""

from __future__ import annotations

from typing import Final

from onceward.model.jobs import Job

MAX_JOBS: Final = 10_000

_Key = tuple[str, str, str]


class ConnectionLosses:
    """Counts lost connections by job, until the job ends in another way.

    An outage ends many connections, but seldom those of one job again and again. A handler that
    ends its own connection does so each time. The count is of this process alone.
    """

    def __init__(self) -> None:
        self._counts: dict[_Key, int] = {}

    def add(self, job: Job) -> int:
        """Count a lost connection and return the number of those in a row."""
        key = _key(job)
        count = self._counts.pop(key, 0) + 1
        if len(self._counts) >= MAX_JOBS:
            del self._counts[next(iter(self._counts))]  # the oldest
        self._counts[key] = count
        return count

    def clear(self, job: Job) -> None:
        """Forget a job that ended in another way."""
        self._counts.pop(_key(job), None)


def _key(job: Job) -> _Key:
    """Return what stays the same for a job: within a request, its id is a random one each time."""
    return job.source, job.event_id, job.handler
