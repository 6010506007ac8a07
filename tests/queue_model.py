"""A model of the queue in plain Python: events, jobs, leases, keys, limits and pauses."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onceward.model.events import Arrival, Outcome, ProcessingState
from onceward.model.jobs import FailureType, HandlerEntry, JobStatus

LIVE = JobStatus.QUEUED


@dataclass
class ModelEvent:
    """An event, and the ids of its jobs."""

    body: bytes
    source: str
    number: int
    """The position in the order of arrival."""
    jobs: list[int] = field(default_factory=list)
    deliveries: int = 1
    conflicts: int = 0


@dataclass
class ModelJob:
    """A job. A leased job is still queued; its lease makes it in progress."""

    handler: str
    max_attempts: int
    source: str
    event: int
    key: str | None
    status: JobStatus = JobStatus.QUEUED
    attempts: int = 0
    failed_attempts: int = 0
    is_due: bool = True
    solo: bool = False
    failure: FailureType | None = None


@dataclass
class ModelLease:
    """A lease, with its jobs in the order in which they were leased."""

    jobs: list[int]
    slots: int
    is_over: bool = False
    """Whether it has expired, or its worker is dead."""


class QueueModel:
    """The expected content of a store."""

    def __init__(self, handlers: Sequence[HandlerEntry]) -> None:
        self.handlers = {entry.name: entry for entry in handlers}
        self.events: dict[str, ModelEvent] = {}
        self.jobs: dict[int, ModelJob] = {}
        self.leases: dict[str, ModelLease] = {}
        self.effects: dict[str, int] = {}
        self.paused_handlers: set[str] = set()
        self.paused_sources: set[str] = set()
        self.audited = 0
        self.recorded = 0

    # Events.

    def deliver(self, delivery: Arrival) -> Outcome:
        """Record a delivery, without its jobs."""
        event = self.events.get(delivery.event_id)
        if event is None:
            self.recorded += 1
            new = ModelEvent(delivery.body, delivery.source, self.recorded)
            self.events[delivery.event_id] = new
            return Outcome.RECORDED
        event.deliveries += 1
        if event.body == delivery.body:
            return Outcome.DUPLICATE
        event.conflicts += 1
        return Outcome.CONFLICT

    def add_job(self, event_id: str, job: int, handler: str, key: str | None) -> None:
        """Add a job of a recorded event."""
        entry, event = self.handlers[handler], self.events[event_id]
        event.jobs.append(job)
        key = key if entry.rules.ordering_key else None
        self.jobs[job] = ModelJob(handler, entry.max_attempts, event.source, event.number, key)

    def state(self, event: ModelEvent) -> ProcessingState:
        """Return the state of an event, which follows from its jobs."""
        statuses = {self.status(job) for job in event.jobs}
        for status, state in (
            (JobStatus.IN_PROGRESS, ProcessingState.PROCESSING),
            (JobStatus.QUEUED, ProcessingState.PENDING),
            (JobStatus.FAILED, ProcessingState.FAILED),
            (JobStatus.DONE, ProcessingState.SUCCEEDED),
        ):
            if status in statuses:
                return state
        return ProcessingState.IGNORED

    def purge(self) -> None:
        """Forget the events whose jobs are all over, and did not fail."""
        kept = (LIVE, JobStatus.FAILED)
        for event_id, event in list(self.events.items()):
            if not any(self.jobs[job].status in kept for job in event.jobs):
                for job in event.jobs:
                    del self.jobs[job]
                del self.events[event_id]

    # Jobs and leases.

    def leased(self) -> set[int]:
        """Return the jobs that have a lease."""
        return {job for lease in self.leases.values() for job in lease.jobs}

    def waiting(self) -> list[int]:
        """Return the jobs that wait for a time."""
        live = {number: job for number, job in self.jobs.items() if job.status is LIVE}
        return [number for number, job in live.items() if not job.is_due]

    def in_flight(self) -> Iterator[ModelJob]:
        """Yield the jobs that have a lease and are not settled."""
        for job in self.leased():
            if job in self.jobs and self.jobs[job].status is LIVE:
                yield self.jobs[job]

    def status(self, job: int) -> JobStatus:
        """Return the status of a job as the lists show it."""
        status = self.jobs[job].status
        return JobStatus.IN_PROGRESS if status is LIVE and job in self.leased() else status

    def may_settle(self, token: str, job: int) -> bool:
        """Return whether a settlement of a job lands."""
        lease = self.leases.get(token)
        return lease is not None and job in lease.jobs and self.jobs[job].status is LIVE

    def fail_attempt(self, job: ModelJob, *, is_last: bool) -> None:
        """Count a failed attempt."""
        job.attempts += 1
        job.failed_attempts += 1
        job.is_due = False
        job.status = JobStatus.FAILED if is_last else LIVE

    def reclaim(self) -> None:
        """Take the jobs back from leases that are over."""
        started: Counter[str] = Counter()
        for token in [token for token, lease in self.leases.items() if lease.is_over]:
            lease = self.leases.pop(token)
            for job in map(self.jobs.get, lease.jobs):
                if job is None or job.status is not LIVE:
                    continue
                started[job.handler] += 1
                if job.solo:
                    is_last = job.attempts + 1 >= job.max_attempts
                    self.fail_attempt(job, is_last=is_last)
                    job.failure = FailureType.EXHAUSTED if is_last else None
                else:
                    job.solo = started[job.handler] <= lease.slots
                    job.is_due = True

    # Claims.

    def may_run(self, job: ModelJob) -> bool:
        """Return whether a queued job is the next of its key, if it has one."""
        if job.key is None:
            return True
        same_key = [
            other
            for other in self.jobs.values()
            if (other.handler, other.key) == (job.handler, job.key)
        ]
        if any(other.handler == job.handler and other.key == job.key for other in self.in_flight()):
            return False
        holds = self.handlers[job.handler].rules.holds_key
        return not any(
            other.event < job.event
            and (
                other.status is LIVE
                or (
                    other.status is JobStatus.FAILED
                    and holds
                    and other.failure is not FailureType.HELD
                )
            )
            for other in same_key
        )

    def eligible(self, handlers: Collection[str], *, solo: bool) -> dict[str, set[int]]:
        """Return the jobs of each handler that a claim may lease now."""
        leased = self.leased()
        found: dict[str, set[int]] = defaultdict(set)
        for number, job in self.jobs.items():
            if (
                job.status is LIVE
                and job.is_due
                and job.solo is solo
                and job.handler in handlers
                and job.handler not in self.paused_handlers
                and job.source not in self.paused_sources
                and number not in leased
                and self.may_run(job)
            ):
                found[job.handler].add(number)
        return found

    def allowed(self, handler: str, wanted: int) -> int:
        """Return how many jobs of a handler a claim may lease, by its concurrency."""
        concurrency = self.handlers[handler].rules.concurrency
        if concurrency is None:
            return wanted
        count = sum(1 for job in self.in_flight() if job.handler == handler)
        return max(0, min(wanted, concurrency - count))

    def check_claim(
        self, taken: Sequence[int], wanted: Mapping[str, int], *, limit: int, solo: bool
    ) -> None:
        """Assert that a claim took as many jobs as it may, of those it may, and fairly."""
        eligible = self.eligible(wanted, solo=solo)
        by_handler: dict[str, list[int]] = defaultdict(list)
        for job in taken:
            by_handler[self.jobs[job].handler].append(job)
        most = {}
        for handler, number in wanted.items():
            most[handler] = min(len(eligible[handler]), self.allowed(handler, number))
            assert set(by_handler[handler]) <= eligible[handler], "leased a job that must wait"
            assert len(by_handler[handler]) <= most[handler], "leased more than allowed"
        assert len(taken) == min(limit, sum(most.values())), "left jobs that could run"
        for handler, number in most.items():
            if len(by_handler[handler]) < number:
                others = [len(ids) for ids in by_handler.values()]
                assert max(others, default=0) <= len(by_handler[handler]) + 1, "an unfair claim"
