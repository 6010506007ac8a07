"""The queue of a handler that gets many events in one call."""

from __future__ import annotations

from collections import deque

from onceward.work.claiming.leases import LeasedJob
from onceward.work.running.batching import AdaptiveBatchSize


class GatheredJobs:
    """The jobs of one handler that wait for its next call.

    One call runs at a time in a process. Events gather meanwhile, and the next call gets them all.
    """

    def __init__(self, max_events: int) -> None:
        self._size = AdaptiveBatchSize(max_events, start=max_events)
        self.queue: deque[LeasedJob] = deque()
        self.is_running = False
        self.was_last = False
        """Whether the handler's last run was a call with many events."""

    @property
    def is_ready(self) -> bool:
        """Whether a call may start."""
        return bool(self.queue) and not self.is_running

    def wanted(self, alone: int, *, is_slow: bool) -> int:
        """Return how many jobs to claim, so that one call can be full. `alone` others wait, too.

        The next call of a slow handler is far away: another worker may be sooner.
        """
        waiting = len(self.queue) + alone
        if is_slow and (self.is_running or waiting):
            return 0
        return self._size.size - waiting if waiting <= self._size.size // 2 else 0

    def take(self) -> list[LeasedJob]:
        """Remove and return the jobs of the call that starts now."""
        self.is_running = self.was_last = True
        count = min(self._size.size, len(self.queue))
        return [self.queue.popleft() for _ in range(count)]

    def committed(self, jobs: int) -> None:
        """Let the calls grow after one that committed."""
        self._size.committed(jobs)

    def failed(self) -> None:
        """Let the calls shrink after one that committed nothing."""
        self._size.failed()
