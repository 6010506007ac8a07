"""A worker in simulated time: the scheduler with a model of the queue and of handlers."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

from onceward.model.jobs import Job, Lease
from onceward.work.claiming.scheduler import ASK_INTERVAL_SECONDS, ClaimPlan, Run
from tests.scheduling import (
    POLL_SECONDS,
    handler_of,
    lease_of,
    make_claim,
    make_job,
    make_scheduler,
)

CLAIM_SECONDS = 0.004
MIN_PAUSE_SECONDS = 0.02
RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Model:
    """A handler: how its jobs arrive, how long they take and whether they fail."""

    seconds: float
    backlog: int = 0
    jobs_per_second: float = 0.0
    first_at: float = 0.0
    """The time at which the jobs begin to arrive."""
    fails: bool = False
    slower_from: float = float("inf")
    """The time from which each job takes `slower_seconds`."""
    slower_seconds: float = 30.0

    def duration(self, now: float) -> float:
        return self.seconds if now < self.slower_from else self.slower_seconds


class SimulatedWorker:
    """Runs jobs as the worker does, from time 0. Failed jobs come back after a second."""

    def __init__(self, models: dict[str, Model], *, workers: int) -> None:
        self.now = 0.0
        self.waits: defaultdict[str, list[float]] = defaultdict(list)
        """For each handler, the times from when a job was due until it started."""
        self.starts: defaultdict[str, list[float]] = defaultdict(list)
        self.ended: Counter[str] = Counter()
        self.claims = 0
        self._models = models
        self._scheduler = make_scheduler(*models, workers=workers)
        self._due: dict[str, list[tuple[float, Job]]] = {name: [] for name in models}
        self._due_at: dict[int, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._pauses = 0
        self._is_pausing = self._is_woken = False
        for name, model in models.items():
            for _ in range(model.backlog):
                self._enqueue(make_job(name), 0.0)
            if model.jobs_per_second:
                self._at(model.first_at, partial(self._arrive, name))
        self._at(0.0, self._claim)

    def run(self, seconds: float) -> None:
        """Let the time pass."""
        while self._events and self._events[0][0] <= seconds:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    # The queue.

    def _arrive(self, name: str) -> None:
        self._enqueue(make_job(name), self.now)
        self._at(self.now + 1 / self._models[name].jobs_per_second, partial(self._arrive, name))
        self._wake()

    def _enqueue(self, job: Job, due_at: float) -> None:
        self._due_at[job.id] = due_at
        heapq.heappush(self._due[job.handler], (due_at, job))

    def _lease(self, plan: ClaimPlan) -> Lease | None:
        """Lease due jobs as a claim does: the first of each handler, then the second ..."""
        chosen: list[tuple[int, float, Job]] = []
        for name, wanted in plan.wanted.items():
            due = self._due[name]
            for turn in range(wanted):
                if not due or due[0][0] > self.now:
                    break
                chosen.append((turn, *heapq.heappop(due)))
        chosen.sort()
        for _, due_at, job in chosen[plan.limit :]:
            heapq.heappush(self._due[job.handler], (due_at, job))
        jobs = [job for _, _, job in chosen[: plan.limit]]
        return lease_of(*jobs) if jobs else None

    def _next_due_seconds(self) -> float | None:
        times = [due[0][0] - self.now for due in self._due.values() if due]
        return min((time for time in times if time > 0), default=None)

    # The worker.

    def _claim(self) -> None:
        self._start_runs()
        plan = self._scheduler.next_claim(self.now)
        if plan is None:
            self._pause(ASK_INTERVAL_SECONDS)
        else:
            self._at(self.now + CLAIM_SECONDS, lambda: self._end_claim(plan))

    def _end_claim(self, plan: ClaimPlan) -> None:
        self.claims += 1
        claim = make_claim(self._lease(plan), next_due_seconds=self._next_due_seconds())
        pause = self._scheduler.add(plan, claim, self.now)
        self._start_runs()
        if pause is None:
            self._claim()
        else:
            self._pause(min(pause, POLL_SECONDS))

    def _pause(self, seconds: float) -> None:
        self._is_pausing = True
        self._pauses += 1
        number = self._pauses
        end = self.now if self._is_woken else self.now + max(seconds, MIN_PAUSE_SECONDS)
        self._at(end, lambda: self._end_pause(number))

    def _end_pause(self, number: int) -> None:
        if self._is_pausing and number == self._pauses:
            self._is_pausing = self._is_woken = False
            self._claim()

    def _wake(self) -> None:
        if self._is_pausing and not self._is_woken:
            number = self._pauses
            self._at(self.now, lambda: self._end_pause(number))
        self._is_woken = True

    def _give_back(self) -> None:
        for _, job in self._scheduler.withdraw_excess(self.now):
            heapq.heappush(self._due[job.handler], (self.now, job))

    def _start_runs(self) -> None:
        self._give_back()
        while (run := self._scheduler.next_run(self.now)) is not None:
            self._start(run)

    def _start(self, run: Run) -> None:
        name = handler_of(run)
        self.waits[name].append(self.now - self._due_at[run.jobs[0].job.id])
        self.starts[name].append(self.now)
        seconds = self._models[name].duration(self.now)
        self._at(self.now + seconds, lambda: self._end(run, seconds))

    def _end(self, run: Run, seconds: float) -> None:
        name, failed = handler_of(run), self._models[handler_of(run)].fails
        self._scheduler.complete_job(name, seconds, failed=failed)
        self._scheduler.free_slot(run)
        self.ended[name] += 1
        if failed:
            self._enqueue(run.jobs[0].job, self.now + RETRY_SECONDS)
        self._start_runs()
        self._wake()
