"""The scheduler: decides what a worker claims and starts, without event loop, store or clock."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from onceward.model.jobs import Claim, Job, Lease
from onceward.settings import Settings
from onceward.work.claiming.gathering import GatheredJobs
from onceward.work.claiming.leases import LeasedJob
from onceward.work.claiming.pace import HandlerPace
from onceward.work.claiming.solo_turns import TURN_SECONDS, SoloTurns
from onceward.work.claiming.time_accounts import TimeAccounts
from onceward.work.running.batching import AdaptiveBatchSize, BatchOutcome

PREFETCH_SECONDS: Final = 0.5
"""How much work a worker claims ahead. More would withhold jobs from idle workers elsewhere."""

MAX_PREFETCH_JOBS: Final = 400

REFILL_DIVISOR: Final = 4
"""With a backlog, a worker claims when it holds a fourth of the jobs that it would hold at most."""

ASK_INTERVAL_SECONDS: Final = 0.25
"""How often a busy worker claims jobs of the handlers that it holds few of."""

STUCK_SECONDS: Final = 1.0
"""The age of a running job from which its handler counts as slow, even if others were quick."""


def prefetch_limit(slots: int, mean_seconds: float) -> int:
    """Return how many jobs to hold if a job takes `mean_seconds` on average."""
    ahead = PREFETCH_SECONDS / mean_seconds if mean_seconds > 0 else MAX_PREFETCH_JOBS
    return int(min(max(MAX_PREFETCH_JOBS, slots), slots * max(1.0, ahead)))


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """The next claim: the jobs wanted of each handler, and of all together.

    A handler of which no job is wanted now is included as well: the claim also reports whether one
    of its jobs must run alone, and when the next one is due.
    """

    wanted: Mapping[str, int]
    limit: int
    solo: bool = False
    """Whether to claim one job that must run alone in its process."""


@dataclass(slots=True, eq=False)
class Run:
    """The jobs in one worker slot: a single job, a batch that shares a transaction, or one call."""

    jobs: list[LeasedJob]
    is_batch: bool
    """Whether the handlers of the jobs share a transaction."""
    started_at: float
    is_gathered: bool = False
    """Whether one call of a handler gets all the jobs."""
    handlers: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Collect the handlers of the jobs."""
        self.handlers = frozenset(job.handler for _, job in self.jobs)


class Scheduler:
    """The queued and running jobs of a worker, and the rules for claiming and starting.

    Each handler has a queue of its own, and starts its jobs in the order of their leases. Among the
    handlers, the one that has used the least time is next. A single handler, and all slow ones
    together, leave some slots to the others.
    """

    def __init__(
        self,
        settings: Settings,
        handlers: Collection[str],
        *,
        max_shared_transactions: int,
        may_share: Callable[[Job], bool],
        max_events: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Create a scheduler. A call of a handler in `max_events` gets as many jobs, at most."""
        self._workers = settings.workers
        self._poll_seconds = settings.poll_seconds
        self._can_share = settings.max_jobs_per_transaction > 1
        self._max_shared_transactions = max_shared_transactions
        self._may_share = may_share
        self._batch_size = AdaptiveBatchSize(settings.max_jobs_per_transaction)
        self._paces = {name: HandlerPace() for name in handlers}
        self._unknown = set(handlers)
        """The handlers of which no job has ended."""
        self._accounts = TimeAccounts(handlers)
        reserved = max(1, self._workers // 8) if len(self._paces) > 1 else 0
        self._handler_slots = max(1, self._workers - reserved)
        """The slots for a single handler, and for all slow ones together."""
        self._queues: dict[str, deque[LeasedJob]] = {name: deque() for name in handlers}
        self._shareable: deque[LeasedJob] = deque()
        self._gathered = {name: GatheredJobs(count) for name, count in max_events.items()}
        self._held: Counter[str] = Counter()
        """The jobs of each handler that are queued or running here."""
        self._runs: set[Run] = set()
        self._running: Counter[str] = Counter()
        """The slots that each handler occupies, alone or in a batch with others."""
        self._running_batches = 0
        self._last_was_batch = False
        self._is_caught_up = False
        self.may_have_due = True
        """Whether jobs may be due that the last claim left behind, or that were announced since."""
        self._last_claimed: Counter[str] = Counter()
        self._backlogged: set[str] = set()
        """The handlers of which the last claim got as many jobs as it wanted."""
        self._asked_at = -math.inf
        self._solo_turns = SoloTurns()
        self._holds_solo = False

    # Claiming.

    def next_claim(
        self, now: float, *, without: Collection[str] = (), freed: Collection[str] = ()
    ) -> ClaimPlan | None:
        """Return the next claim, or None while the worker holds enough jobs.

        No jobs of the handlers `without` are wanted. Of the handlers `freed`, one job of a key was
        settled: the claim is made even if enough jobs are held, because it wakes the next job of
        the key.
        """
        plan = self._plan_claim(now, without, freed)
        if plan is not None:
            # Where none are wanted because no slot is free, one may become free during the claim.
            self.may_have_due = 0 in plan.wanted.values()
        return plan

    def _plan_claim(
        self, now: float, without: Collection[str], freed: Collection[str]
    ) -> ClaimPlan | None:
        handlers = [name for name in self._paces if name not in without]
        is_empty = not self._held.total()
        if not handlers or (self._holds_solo and not is_empty):
            return None
        is_solo = self._solo_turns.is_solo(now)
        if is_solo and is_empty:
            return ClaimPlan(dict.fromkeys(handlers, 1), 1, solo=True)
        slow = self._slow(now)
        slow_held = sum(self._slots_wanted(name) for name in slow)
        if is_solo and not slow_held:
            return None  # the process is empty soon
        free_slots = 0 if is_solo else max(0, self._handler_slots - slow_held)
        single = [name for name in handlers if name not in self._gathered]
        quick = [name for name in single if name not in slow]
        wanted, limit = self._plan_quick(quick, slots=max(1, self._workers - slow_held), now=now)
        if freed:
            wanted |= {name: max(1, wanted[name]) for name in freed if name in wanted}
            limit = max(limit, len(freed))
        for_slots = self._plan_slow([name for name in single if name in slow], free_slots)
        for_slots |= {
            name: gathered.wanted(len(self._queues[name]), is_slow=is_solo or name in slow)
            for name, gathered in self._gathered.items()
            if name in handlers
        }
        plan = ClaimPlan(wanted | for_slots, limit + sum(for_slots.values()))
        return plan if freed or any(plan.wanted.values()) else None

    def _slots_wanted(self, name: str) -> int:
        """Return how many slots the jobs of a handler take, those that run and those that wait."""
        if name not in self._gathered:
            return self._held[name]
        is_waiting = self._gathered[name].is_ready
        return self._running[name] + len(self._queues[name]) + is_waiting

    def _plan_slow(self, slow: list[str], free_slots: int) -> dict[str, int]:
        """Return how many jobs to claim of each slow handler: as many as slots are free.

        Those with a backlog share the slots, and the ones that used the least time come first: a
        claim would prefer the oldest jobs. The others seldom have jobs, and get a share each.
        """
        if not slow or not free_slots:
            return dict.fromkeys(slow, 0)
        wanted = dict.fromkeys(slow, max(1, free_slots // len(slow)))
        backlogged = self._accounts.by_use(name for name in slow if name in self._backlogged)
        for place, name in enumerate(backlogged):
            wanted[name] = (free_slots + len(backlogged) - 1 - place) // len(backlogged)
        return wanted

    def _plan_quick(
        self, quick: list[str], *, slots: int, now: float
    ) -> tuple[dict[str, int], int]:
        """Return how many jobs to claim of each quick handler, and of all together.

        Jobs are claimed when few are held. Handlers that hold few are also asked for in between,
        so that their jobs do not wait until those of the others have run.
        """
        active = [name for name in quick if self._held[name] or self._last_claimed[name]]
        targets = {name: self._target(name, len(active)) for name in quick}
        limit = self._quick_limit(active or quick, slots=slots)
        if not limit:
            is_late = len(quick) > 1 and now - self._asked_at >= ASK_INTERVAL_SECONDS
            targets = {
                name: target if is_late and self._held[name] <= target // 2 else 0
                for name, target in targets.items()
            }
        wanted = {name: max(0, target - self._held[name]) for name, target in targets.items()}
        if any(wanted.values()):
            self._asked_at = now
        if not limit:
            return wanted, sum(wanted.values())
        # Each handler gets its first job, also if others have many older ones.
        return wanted, max(limit, sum(1 for number in wanted.values() if number))

    def _target(self, name: str, active: int) -> int:
        """Return how many jobs of a quick handler to hold if `active` handlers have jobs."""
        pace = self._paces[name]
        if not pace.is_known:
            return self._handler_slots
        ahead = prefetch_limit(self._handler_slots, pace.mean_seconds)
        return max(1, int(ahead * pace.weight * min(1.0, 2 / max(1, active))))

    def _quick_limit(self, quick: list[str], *, slots: int) -> int:
        """Return how many jobs of quick handlers to claim, or 0 while enough are held."""
        if not quick:
            return 0
        held = sum(self._held[name] for name in quick)
        seconds = sum((1 + self._held[name]) * self._paces[name].mean_seconds for name in quick)
        limit = prefetch_limit(slots, seconds / (len(quick) + held))
        enough = max(min(self._batch_size.size, limit // 2), slots - 1)
        if not self._is_caught_up:  # claim early: otherwise the slots are empty during the claim
            enough = max(enough, limit // REFILL_DIVISOR)
        if held > enough or (self._is_caught_up and self._next_batch_waits):
            return 0
        return limit - held

    @property
    def _next_batch_waits(self) -> bool:
        """Whether jobs wait until a batch ends. By then, more may be due for the next batch."""
        return bool(self._running_batches and self._shareable)

    def _slow(self, now: float) -> set[str]:
        """Return the handlers whose jobs take long, or of which one does so now."""
        slow = {name for name, pace in self._paces.items() if pace.is_slow}
        for run in self._runs:
            if not run.is_batch and now - run.started_at > STUCK_SECONDS:
                slow |= run.handlers
        return slow

    def add(self, plan: ClaimPlan, claim: Claim, now: float) -> float | None:
        """Queue the claimed jobs. Return the seconds to pause, or None to claim again at once."""
        jobs = claim.lease.jobs if claim.lease else ()
        self._solo_turns.note_waiting(is_waiting=claim.solo_waiting)
        if claim.lease is not None:
            # Jobs of slow handlers run alone: in a batch, they would be given back at once.
            alone = self._paces.keys() if plan.solo or not self._can_share else self._slow(now)
            self._queue(claim.lease, alone, is_solo=plan.solo)
        self._last_claimed = Counter(job.handler for job in jobs)
        self._holds_solo = plan.solo and bool(jobs)
        if plan.solo:
            self._solo_turns.note_solo_claim(now, found=bool(jobs))
            self.may_have_due = True  # of those that need not run alone
            return None
        asked = {name: wanted for name, wanted in plan.wanted.items() if wanted}
        full = {name for name, wanted in asked.items() if self._last_claimed[name] >= wanted}
        left_out = self._backlogged - asked.keys()
        has_room = bool(self._backlogged & asked.keys() - full)
        self._backlogged = left_out | full
        self._is_caught_up = len(jobs) < plan.limit and not full
        self.may_have_due |= not self._is_caught_up or claim.solo_waiting
        if not self._is_caught_up or (has_room and left_out):
            return None
        return self._pause_seconds(claim, now)

    def _pause_seconds(self, claim: Claim, now: float) -> float | None:
        """Return the pause after a claim that left no job behind."""
        pause = self._poll_seconds
        if self._held.total():
            pause = min(pause, STUCK_SECONDS)  # a job may get stuck
        elif claim.solo_waiting:
            self._solo_turns.note_idle()
            if self._solo_turns.is_solo(now):
                return None
            pause = min(pause, TURN_SECONDS)
        return pause if claim.next_due_seconds is None else min(pause, claim.next_due_seconds)

    def _may_gather(self, job: Job) -> bool:
        """Return whether a job may join a call. One that failed before would fail the others."""
        return job.handler in self._gathered and not job.attempts

    def _queue(self, lease: Lease, alone: Collection[str], *, is_solo: bool) -> None:
        """Queue jobs, those of the handlers `alone` for a transaction of their own."""
        for job in lease.jobs:
            leased = LeasedJob(lease, job)
            if self._may_gather(job) and not is_solo:
                self._accounts.rejoin(job.handler)
                self._gathered[job.handler].queue.append(leased)
            elif job.handler not in alone and self._may_share(job):
                self._shareable.append(leased)
            else:
                self._accounts.rejoin(job.handler)
                self._queues[job.handler].append(leased)
            self._held[job.handler] += 1

    # Starting.

    def next_run(self, now: float) -> Run | None:
        """Start the next jobs. Return None if no slot is free or no job may start.

        Batches and single jobs alternate, so that neither kind starves with a single slot.
        """
        if len(self._runs) >= self._workers:
            return None
        single = self._next_handler(now)
        jobs = [] if self._last_was_batch and single is not None else self._take_batch()
        is_batch, is_gathered = bool(jobs), False
        if single is not None and not is_batch:
            jobs, is_gathered = self._take(single)
            self._accounts.charge(single, self._paces[single].cost_seconds)
        if not jobs:
            return None
        run = Run(jobs, is_batch, started_at=now, is_gathered=is_gathered)
        self._last_was_batch = is_batch
        self._running_batches += is_batch
        self._running.update(run.handlers)
        self._runs.add(run)
        return run

    def _take(self, name: str) -> tuple[list[LeasedJob], bool]:
        """Return the next jobs of a handler, and whether they are for one call.

        Calls and jobs that must run alone alternate, so that neither starves with a single slot.
        """
        gathered, queue = self._gathered.get(name), self._queues[name]
        if gathered is not None and gathered.is_ready and not (gathered.was_last and queue):
            return gathered.take(), True
        if gathered is not None:
            gathered.was_last = False
        return [queue.popleft()], False

    def _next_handler(self, now: float) -> str | None:
        """Return the handler that has used the least time, of those that may start a job."""
        ready = {name for name, gathered in self._gathered.items() if gathered.is_ready}
        candidates = [
            name
            for name, queue in self._queues.items()
            if (queue or name in ready) and not self._is_full(name)
        ]
        if not candidates:
            return None
        slow = self._slow(now)
        if len(slow | self._unknown) < len(self._paces):
            slow |= self._unknown  # they may be slow, and would delay the ones that are not
        occupied = sum(self._running[name] for name in slow)
        if occupied < self._handler_slots:
            return self._accounts.least_used(candidates)
        quick = self._accounts.least_used(name for name in candidates if name not in slow)
        if quick is None and occupied == self._handler_slots and self._all_stuck(slow, now):
            return self._accounts.least_used(name for name in candidates if self._is_new(name))
        return quick

    def _all_stuck(self, handlers: Collection[str], now: float) -> bool:
        """Return whether all runs of some handlers take long."""
        return all(
            now - run.started_at > STUCK_SECONDS
            for run in self._runs
            if not run.handlers.isdisjoint(handlers)
        )

    def _is_new(self, name: str) -> bool:
        """Return whether no job of a handler has started. Most handlers are quick: one is tried."""
        return name in self._unknown and not self._running[name]

    def _is_full(self, name: str) -> bool:
        """Return whether a handler has all the slots that one handler may have."""
        return self._running[name] >= self._handler_slots

    def _take_batch(self) -> list[LeasedJob]:
        """Remove and return the jobs of the next batch, or none if no batch may start."""
        taken: list[LeasedJob] = []
        skipped: list[LeasedJob] = []
        if self._running_batches < self._max_shared_transactions:
            while self._shareable and len(taken) < self._batch_size.size:
                leased = self._shareable.popleft()
                (skipped if self._is_full(leased.job.handler) else taken).append(leased)
            self._shareable.extendleft(reversed(skipped))
        return taken

    # Ending.

    def complete_batch(self, outcome: BatchOutcome, seconds: float) -> None:
        """Adapt to the outcome of a batch, and queue its unsettled jobs before all others."""
        if outcome.settled:
            self._batch_size.committed(len(outcome.settled))
            for _, job in outcome.settled:
                self.complete_job(job.handler, seconds / len(outcome.settled))
        else:
            self._batch_size.failed()
        self._retry(outcome)

    def complete_call(self, handler: str, outcome: BatchOutcome, seconds: float) -> None:
        """Adapt to the outcome of a call with many events; queue its unsettled jobs first."""
        gathered = self._gathered[handler]
        has_failed = bool(outcome.retry_alone)
        if has_failed:
            gathered.failed()
        else:
            gathered.committed(len(outcome.settled))
        self.complete_job(handler, seconds, failed=has_failed)
        self._retry(outcome)

    def _retry(self, outcome: BatchOutcome) -> None:
        for leased in reversed([*outcome.retry_alone, *outcome.unusable]):
            handler = leased.job.handler
            self._accounts.rejoin(handler)
            self._queues[handler].appendleft(leased)
            self._held[handler] += 1
        self.requeue(outcome.remaining)

    def complete_job(self, handler: str, seconds: float, *, failed: bool = False) -> None:
        """Adapt to the time and the outcome of a job."""
        self._unknown.discard(handler)
        self._paces[handler].observe(seconds, failed=failed)

    def free_slot(self, run: Run) -> None:
        """Free the slot of a run that ended."""
        self._runs.remove(run)
        self._running.subtract(run.handlers)
        self._running_batches -= run.is_batch
        if run.is_gathered:
            (handler,) = run.handlers
            self._gathered[handler].is_running = False
        self._held.subtract(job.handler for _, job in run.jobs)

    def requeue(self, jobs: Iterable[LeasedJob]) -> None:
        """Put jobs of a batch or a call back at the front of their queue."""
        requeued = list(jobs)
        for leased in reversed(requeued):
            gathered = self._gathered.get(leased.job.handler)
            (self._shareable if gathered is None else gathered.queue).appendleft(leased)
        self._held.update(job.handler for _, job in requeued)

    # Giving back.

    def runs_of(self, is_affected: Callable[[LeasedJob], bool]) -> list[Run]:
        """Return the runs that include an affected job."""
        return [run for run in self._runs if any(map(is_affected, run.jobs))]

    def withdraw(self, is_affected: Callable[[LeasedJob], bool]) -> list[LeasedJob]:
        """Remove and return the affected jobs that are queued."""
        withdrawn = []
        gathered = (each.queue for each in self._gathered.values())
        for queue in (*self._queues.values(), *gathered, self._shareable):
            affected = [leased for leased in queue if is_affected(leased)]
            if affected:
                remaining = [leased for leased in queue if not is_affected(leased)]
                queue.clear()
                queue.extend(remaining)
                withdrawn += affected
        self._held.subtract(job.handler for _, job in withdrawn)
        return withdrawn

    def withdraw_excess(self, now: float) -> list[LeasedJob]:
        """Remove and return the queued jobs of handlers that became slower since they were claimed.

        A slow handler keeps as many as slots are free for it.
        """
        queued = [
            name for name, queue in self._queues.items() if queue and name not in self._gathered
        ]
        if not queued and not self._shareable:
            return []
        slow = self._slow(now)
        withdrawn = [leased for leased in self._shareable if leased.job.handler in slow]
        if withdrawn:
            self._shareable = deque(x for x in self._shareable if x.job.handler not in slow)
        free_slots = max(0, self._handler_slots - sum(self._running[name] for name in slow))
        for name in self._accounts.by_use(queued):
            queue = self._queues[name]
            if name in slow:
                withdrawn += _cut(queue, free_slots)
                free_slots -= len(queue)
            elif len(queue) > 2 * self._handler_slots:
                limit = prefetch_limit(self._handler_slots, self._paces[name].mean_seconds)
                withdrawn += _cut(queue, 2 * limit)  # more than a claim, despite small changes
        self._held.subtract(job.handler for _, job in withdrawn)
        return withdrawn


def _cut(queue: deque[LeasedJob], length: int) -> list[LeasedJob]:
    """Remove and return the last jobs of a queue that is longer than `length`."""
    return [queue.pop() for _ in range(len(queue) - length)][::-1]
