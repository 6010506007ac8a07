"""Batches: jobs that share a transaction and its commit.

A handler joins batches if it declares ``transaction="shared"``: a rollback then undoes everything
it did. It must also be quick, because a batch holds its locks until its last handler returns.
Decision 0007 has the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from onceward.errors import LeaseLost
from onceward.ports import Queue, StoreTransaction
from onceward.runtime.clock import Clock
from onceward.runtime.timeouts import Interrupt
from onceward.work.claiming.leases import LeasedJob, ids_by_lease
from onceward.work.inline.joined_transaction import JoinedTransaction
from onceward.work.running.transaction import UnitOfWork

COMMIT_AFTER_SECONDS: Final = 0.02
"""A batch that has run for this long commits: other transactions may wait for its locks."""

SHARED_TIMEOUT_SECONDS: Final = 0.25
"""The timeout of each handler in a batch. A job that needs longer runs alone."""

QUICK_SECONDS: Final = 0.01
"""The mean below which a handler is quick."""

SLOW_SECONDS: Final = 0.1
"""A run longer than this counts in full, with its statements."""

_MIN_RUNS: Final = 3
_MEAN_WEIGHT: Final = 0.1
_MAX_SAMPLE_SECONDS: Final = 4 * QUICK_SECONDS  # so that one outlier does not decide


class HandlerLatency:
    """A moving average of the time that a handler takes, apart from its statements."""

    def __init__(self) -> None:
        self._runs = 0
        self._mean_seconds = 0.0

    @property
    def is_quick(self) -> bool:
        """Whether enough runs were observed and their mean is short."""
        return self._runs >= _MIN_RUNS and self._mean_seconds <= QUICK_SECONDS

    def observe(self, seconds: float, statement_seconds: float = 0.0) -> None:
        """Add a run that spent `statement_seconds` of its time in statements.

        Statements take as long in a batch as in concurrent transactions, so they do not count. In
        a slow run they do: a batch must not hold its locks that long.
        """
        if seconds <= SLOW_SECONDS:
            seconds -= statement_seconds
        seconds = min(seconds, _MAX_SAMPLE_SECONDS)
        self._runs += 1
        weight = max(_MEAN_WEIGHT, 1 / self._runs)
        self._mean_seconds += weight * (seconds - self._mean_seconds)


class AdaptiveBatchSize:
    """The number of jobs in a batch, which grows with each commit and halves with each failure.

    The size doubles until the first failure and grows by one afterwards. On rows that many jobs
    update, it settles where batches seldom conflict.
    """

    def __init__(self, max_size: int, *, start: int = 2) -> None:
        self._max_size = max_size
        self._has_failed = False
        self.size = min(start, max_size)

    def committed(self, jobs: int) -> None:
        """Grow after a commit of as many jobs as the size allowed."""
        if jobs >= self.size:
            step = 1 if self._has_failed else self.size
            self.size = min(self.size + step, self._max_size)

    def failed(self) -> None:
        """Shrink after a batch that committed nothing."""
        self._has_failed = True
        self.size = max(self.size // 2, 1)


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The jobs of a batch that ended, by what happens to them next."""

    settled: Sequence[LeasedJob] = ()
    retry_alone: Sequence[LeasedJob] = ()
    """Rolled back: run again, each in its own transaction."""
    remaining: Sequence[LeasedJob] = ()
    """Not run, or rolled back because of another job: run in the next batch."""
    unusable: Sequence[LeasedJob] = ()
    """Left out of a call with many events, because each ends alone: filtered, or not decodable."""


class BatchProgress:
    """The number of jobs that a batch has run, and the deadline of the handler that runs now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = self._handler_started = clock.monotonic()
        self._unit: UnitOfWork | None = None
        self.interrupt = Interrupt()
        self.completed = 0

    @property
    def is_in_handler(self) -> bool:
        """Whether a handler has started and not returned."""
        return self._unit is not None

    @property
    def should_commit(self) -> bool:
        """Whether the batch has run long enough."""
        return self._handler_started - self._started > COMMIT_AFTER_SECONDS

    def start_handler(self, unit: UnitOfWork) -> None:
        """Note that the next handler starts."""
        self._unit = unit

    def complete_handler(self) -> None:
        """Note that the handler returned without an error."""
        self._unit = None
        self._handler_started = self._clock.monotonic()
        self.completed += 1

    def remaining_seconds(self) -> float:
        """Return the seconds until the running handler times out."""
        return self._handler_started + SHARED_TIMEOUT_SECONDS - self._clock.monotonic()

    async def close(self) -> None:
        """Refuse further statements of a handler that ignores its cancellation."""
        if self._unit is not None:
            await self._unit.__aexit__(None, None, None)


class SharedTransaction(JoinedTransaction[StoreTransaction]):
    """One transaction for the units of work of a batch. It begins with the first statement."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(partial(queue.begin, shared=True))
        self._queue = queue

    async def settle(self, jobs: Sequence[LeasedJob]) -> None:
        """Settle the jobs as done and commit. Raise LeaseLost if one of their leases ended."""
        ids = ids_by_lease(jobs)
        if not self.has_begun:
            for token, jobs_of_lease in ids.items():
                if not await self._queue.settle_done(token, *jobs_of_lease):
                    raise LeaseLost
            return
        await (await self.open()).commit_done(ids)
