"""The scheduler: decides what a worker claims and starts, without event loop, store or clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from onceward.model.jobs import Claim, Job, Lease
from onceward.settings import Settings
from onceward.work.batching import AdaptiveBatchSize, BatchOutcome
from onceward.work.leases import LeasedJob

PREFETCH_SECONDS: Final = 0.5
"""How much work a worker claims ahead. More would withhold jobs from idle workers elsewhere."""

MAX_PREFETCH_JOBS: Final = 400
_FIRST_MEAN_SECONDS: Final = 0.01
_MEAN_WEIGHT: Final = 0.1


def prefetch_limit(workers: int, mean_seconds: float) -> int:
    """Return how many jobs to hold if a job takes `mean_seconds` on average."""
    ahead = PREFETCH_SECONDS / mean_seconds if mean_seconds > 0 else MAX_PREFETCH_JOBS
    return int(min(max(MAX_PREFETCH_JOBS, workers), workers * max(1.0, ahead)))


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The next claim. `solo` asks for one job that must run alone in its process."""

    limit: int
    solo: bool


@dataclass(slots=True, eq=False)
class Run:
    """The jobs in one worker slot: a single job, or a batch that shares a transaction."""

    jobs: list[LeasedJob]
    is_batch: bool


class Scheduler:
    """The queued and running jobs of a worker, and the rules for claiming and starting."""

    def __init__(
        self,
        settings: Settings,
        *,
        max_shared_transactions: int,
        may_share: Callable[[Job], bool],
    ) -> None:
        self._workers = settings.workers
        self._poll_seconds = settings.poll_seconds
        self._can_share = settings.max_jobs_per_transaction > 1
        self._max_shared_transactions = max_shared_transactions
        self._may_share = may_share
        self._batch_size = AdaptiveBatchSize(settings.max_jobs_per_transaction)
        self._mean_seconds = _FIRST_MEAN_SECONDS
        self._ready: deque[LeasedJob] = deque()
        self._shareable: deque[LeasedJob] = deque()
        self._running: set[Run] = set()
        self._running_jobs = 0
        self._running_batches = 0
        self._last_was_batch = False
        self._is_caught_up = False
        self._holds_solo = False
        self._claims_solo_next = False

    def next_claim(self) -> ClaimRequest | None:
        """Return the next claim, or None while the worker holds enough jobs."""
        limit = prefetch_limit(self._workers, self._mean_seconds)
        held_jobs = len(self._ready) + len(self._shareable) + self._running_jobs
        if held_jobs > self._enough(limit) or (self._is_caught_up and self._next_batch_waits):
            return None
        return ClaimRequest(limit - held_jobs, self._claims_solo_next)

    def _enough(self, limit: int) -> int:
        """Return how many jobs keep the slots busy. A solo job must be the only one."""
        if self._holds_solo or self._claims_solo_next:
            return 0
        return max(min(self._batch_size.size, limit // 2), self._workers - 1)

    @property
    def _next_batch_waits(self) -> bool:
        """Whether jobs wait until a batch ends. By then, more may be due for the next batch."""
        return bool(self._running_batches and self._shareable)

    def add(self, request: ClaimRequest, claim: Claim) -> float | None:
        """Queue the claimed jobs. Return the seconds to pause, or None to claim again at once."""
        self._claims_solo_next = claim.solo_waiting and not request.solo
        self._holds_solo = claim.lease is not None and request.solo
        if claim.lease is not None:
            self._queue(claim.lease, can_share=self._can_share and not request.solo)
        self._is_caught_up = claim.lease is None or len(claim.lease.jobs) < request.limit
        if request.solo or self._claims_solo_next or not self._is_caught_up:
            return None
        if claim.next_due_seconds is None:
            return self._poll_seconds
        return min(claim.next_due_seconds, self._poll_seconds)

    def _queue(self, lease: Lease, *, can_share: bool) -> None:
        for job in lease.jobs:
            queue = self._shareable if can_share and self._may_share(job) else self._ready
            queue.append(LeasedJob(lease, job))

    def next_run(self) -> Run | None:
        """Start the next jobs. Return None if no slot is free or no job is queued.

        Batches and single jobs alternate, so that neither kind starves with a single slot.
        """
        if len(self._running) >= self._workers:
            return None
        can_batch = self._shareable and self._running_batches < self._max_shared_transactions
        if can_batch and not (self._ready and self._last_was_batch):
            count = min(self._batch_size.size, len(self._shareable))
            run = Run([self._shareable.popleft() for _ in range(count)], is_batch=True)
            self._running_batches += 1
        elif self._ready:
            run = Run([self._ready.popleft()], is_batch=False)
        else:
            return None
        self._last_was_batch = run.is_batch
        self._running_jobs += len(run.jobs)
        self._running.add(run)
        return run

    def complete_batch(self, outcome: BatchOutcome, seconds: float) -> None:
        """Adapt to the outcome of a batch, and queue its unsettled jobs before all others."""
        if outcome.settled:
            self._batch_size.committed(len(outcome.settled))
            self.complete_job(seconds / len(outcome.settled))
        else:
            self._batch_size.failed()
        self._ready.extendleft(reversed(outcome.retry_alone))
        self._shareable.extendleft(reversed(outcome.remaining))

    def complete_job(self, seconds: float) -> None:
        """Adapt to the time that a job took."""
        self._mean_seconds += _MEAN_WEIGHT * (seconds - self._mean_seconds)

    def free_slot(self, run: Run) -> None:
        """Free the slot of a run that ended."""
        self._running.remove(run)
        self._running_jobs -= len(run.jobs)
        self._running_batches -= run.is_batch

    def requeue(self, jobs: Iterable[LeasedJob]) -> None:
        """Put jobs of a cancelled batch back at the front of their queue."""
        self._shareable.extendleft(reversed(list(jobs)))

    def runs_of(self, tokens: set[str]) -> list[Run]:
        """Return the runs that include a job of these leases."""
        return [run for run in self._running if any(lease.token in tokens for lease, _ in run.jobs)]

    def withdraw(self, tokens: set[str]) -> list[LeasedJob]:
        """Remove and return the queued jobs of these leases."""
        return self._withdraw_if(lambda leased: leased.lease.token in tokens)

    def withdraw_handlers(self, handlers: Collection[str]) -> list[LeasedJob]:
        """Remove and return the queued jobs of these handlers."""
        return self._withdraw_if(lambda leased: leased.job.handler in handlers)

    def _withdraw_if(self, is_withdrawn: Callable[[LeasedJob], bool]) -> list[LeasedJob]:
        withdrawn = [leased for leased in (*self._ready, *self._shareable) if is_withdrawn(leased)]
        if withdrawn:
            self._ready = deque(leased for leased in self._ready if not is_withdrawn(leased))
            self._shareable = deque(
                leased for leased in self._shareable if not is_withdrawn(leased)
            )
        return withdrawn

    def withdraw_all(self) -> list[LeasedJob]:
        """Remove and return every queued job."""
        withdrawn = [*self._ready, *self._shareable]
        self._ready.clear()
        self._shareable.clear()
        return withdrawn
