"""Under any sequence of operations, a store behaves as a small model of it predicts."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from onceward.errors import LeaseLost
from onceward.model.events import Arrival, Outcome, ProcessingState
from onceward.model.jobs import (
    TRANSITIONS,
    Fail,
    FailureType,
    HandlerEntry,
    JobStatus,
    Reschedule,
    Route,
)
from onceward.work.effects import Effects
from support.database import RawDatabase
from tests.database_pool import DatabasePool
from tests.factories import ACT, EVERYTHING, SOURCES, arrival, claim, make_store, working

T = TypeVar("T")

HANDLERS = (
    HandlerEntry("credit", 2, (Route("invoice.paid"),)),
    HandlerEntry("notify", 3, (Route("invoice.*"), Route("order.new", "stripe"))),
)
TYPES = ("invoice.paid", "order.new", "unwanted", "invoice.late")
WANTED = {
    "invoice.paid": ("credit", "notify"),
    "invoice.late": ("notify",),
    "order.new": ("notify",),
    "unwanted": (),
}
MAX_ATTEMPTS = {entry.name: entry.max_attempts for entry in HANDLERS}


@dataclass
class ModelEvent:
    body: bytes
    jobs: list[int]
    deliveries: int = 1
    conflicts: int = 0


@dataclass
class ModelJob:
    handler: str
    max_attempts: int
    status: JobStatus = JobStatus.QUEUED
    attempts: int = 0
    failed_attempts: int = 0
    is_due: bool = True
    solo: bool = False
    failure: FailureType | None = None


@dataclass
class ModelLease:
    jobs: set[int]
    is_expired: bool = False


@dataclass
class Model:
    """The expected content of a store."""

    events: dict[str, ModelEvent] = field(default_factory=dict)
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    leases: dict[str, ModelLease] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    requeues: int = 0

    def leased_jobs(self) -> set[int]:
        return {job for lease in self.leases.values() for job in lease.jobs}

    def status(self, id: int) -> JobStatus:
        job = self.jobs[id]
        is_leased = job.status is JobStatus.QUEUED and id in self.leased_jobs()
        return JobStatus.IN_PROGRESS if is_leased else job.status

    def state(self, event: ModelEvent) -> ProcessingState:
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

    def may_settle(self, token: str, job: int) -> bool:
        lease = self.leases.get(token)
        is_held = lease is not None and job in lease.jobs
        return is_held and self.jobs[job].status is JobStatus.QUEUED

    def deliver(self, delivery: Arrival) -> Outcome:
        event = self.events.get(delivery.event_id)
        if event is None:
            self.events[delivery.event_id] = ModelEvent(delivery.body, [])
            return Outcome.RECORDED
        event.deliveries += 1
        if event.body == delivery.body:
            return Outcome.DUPLICATE
        event.conflicts += 1
        return Outcome.CONFLICT

    def reclaim_expired(self) -> None:
        for token in [token for token, lease in self.leases.items() if lease.is_expired]:
            for number in self.leases.pop(token).jobs:
                job = self.jobs[number]
                if job.status is JobStatus.QUEUED and job.solo:
                    is_last = job.attempts + 1 >= job.max_attempts
                    self.fail_attempt(job, is_last=is_last)
                    job.failure = FailureType.EXHAUSTED if is_last else None
                elif job.status is JobStatus.QUEUED:
                    job.solo = True

    def fail_attempt(self, job: ModelJob, *, is_last: bool) -> None:
        job.attempts += 1
        job.failed_attempts += 1
        job.is_due = False
        job.status = JobStatus.FAILED if is_last else JobStatus.QUEUED

    def due(self, handlers: Sequence[str], *, solo: bool) -> set[int]:
        leased = self.leased_jobs()
        return {
            number
            for number, job in self.jobs.items()
            if job.status is JobStatus.QUEUED and job.is_due and job.solo is solo
            if job.handler in handlers and number not in leased
        }


class JobsMachine(RuleBasedStateMachine):
    """Applies each operation to a real store and to the model."""

    def __init__(self, url: str, release: Callable[[str], None]) -> None:
        super().__init__()
        self.release = release
        self.runner = asyncio.Runner()
        self.raw_db = RawDatabase(url)
        self.store = make_store(url, allow_weak_durability=True)
        self.model = Model()
        self.leased: list[tuple[str, int]] = []
        self.seen: dict[int, JobStatus] = {}

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    @initialize()
    def open(self) -> None:
        self.run(self.store.open(serving=True))
        self.run(self.store.register(SOURCES, HANDLERS, []))

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        self.release(self.raw_db.url)

    # Deliveries.

    @rule(
        deliveries=st.lists(
            st.tuples(st.integers(0, 7), st.sampled_from([b"{}", b"[]"])), max_size=5
        )
    )
    def record(self, deliveries: list[tuple[int, bytes]]) -> None:
        batch = [
            arrival(f"evt_{number}", type=TYPES[number % 4], body=body)
            for number, body in deliveries
        ]
        expected = [self.model.deliver(delivery) for delivery in batch]
        receipts = self.run(self.store.record(batch))
        assert [receipt.outcome for receipt in receipts] == expected
        outcomes = zip(batch, expected, strict=True)
        self.add_jobs([delivery for delivery, outcome in outcomes if outcome == "recorded"])

    def add_jobs(self, recorded: list[Arrival]) -> None:
        items = self.run(self.store.jobs(EVERYTHING))
        for delivery in recorded:
            jobs = {
                item.handler: int(item.id)
                for item in items
                if item.external_event_id == delivery.event_id
            }
            assert sorted(jobs) == sorted(WANTED[delivery.type])
            self.model.events[delivery.event_id].jobs = list(jobs.values())
            for handler, job in jobs.items():
                self.model.jobs[job] = ModelJob(handler, MAX_ATTEMPTS[handler])

    # Workers.

    @rule(
        limit=st.integers(1, 4),
        solo=st.booleans(),
        handlers=st.sampled_from([["credit"], ["notify"], ["credit", "notify"]]),
    )
    def claim(self, limit: int, *, solo: bool, handlers: list[str]) -> None:
        self.model.reclaim_expired()
        due = self.model.due(handlers, solo=solo)
        claimed = self.run(claim(self.store, limit=limit, solo=solo, handlers=handlers))
        taken = {job.id for job in claimed.lease.jobs} if claimed.lease else set()
        assert taken <= due
        assert len(taken) == min(1 if solo else limit, len(due))
        if claimed.lease:
            self.model.leases[claimed.lease.token] = ModelLease(taken)
            self.leased += [(claimed.lease.token, job) for job in sorted(taken)]
            for job in claimed.lease.jobs:
                assert job.attempts == self.model.jobs[job.id].attempts
                assert job.max_attempts == self.model.jobs[job.id].max_attempts
        assert claimed.solo_waiting is bool(self.model.due(handlers, solo=True))

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999))
    def settle_done(self, pick: int) -> None:
        token, job = self.picked(pick)
        expected = self.model.may_settle(token, job)
        assert self.run(self.store.settle_done(token, job)) is expected
        if expected:
            self.finish(job)

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999), key=st.sampled_from(["a", "b", "c", "d"]))
    def settle_with_an_effect(self, pick: int, key: str) -> None:
        token, job = self.picked(pick)
        expected = self.model.may_settle(token, job)
        is_first, landed = self.run(self.run_handler(token, job, key))
        assert is_first is (key not in self.model.effects)
        assert landed is expected
        if landed:
            self.model.effects.setdefault(key, job)
            self.finish(job)

    async def run_handler(self, token: str, job: int, key: str) -> tuple[bool, bool]:
        async with working(self.store) as work:
            is_first = await Effects(work.unit, job).once(key)
            try:
                return is_first, await work.unit.settle(token, job)
            except LeaseLost:
                return is_first, False

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999), delay_seconds=st.sampled_from([0.0, 1000.0]))
    def settle_retry(self, pick: int, delay_seconds: float) -> None:
        if job := self.settle_error(pick, Reschedule(delay_seconds, "try again")):
            self.model.fail_attempt(job, is_last=False)
            job.is_due = delay_seconds == 0
            job.solo = False

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999), failure=st.sampled_from(FailureType))
    def settle_fail(self, pick: int, failure: FailureType) -> None:
        if job := self.settle_error(pick, Fail(failure, "no use")):
            self.model.fail_attempt(job, is_last=True)
            job.failure = failure
            job.solo = False

    def settle_error(self, pick: int, settlement: Reschedule | Fail) -> ModelJob | None:
        token, job = self.picked(pick)
        expected = self.model.may_settle(token, job)
        assert self.run(self.store.settle_error(token, job, settlement, 0.1)) is expected
        if not expected:
            return None
        self.model.leases[token].jobs.discard(job)
        return self.model.jobs[job]

    def finish(self, id: int) -> None:
        job = self.model.jobs[id]
        job.status = JobStatus.DONE
        job.attempts += 1

    def picked(self, pick: int) -> tuple[str, int]:
        """Return a token and a job of its lease, current or lost: late workers settle as well."""
        return self.leased[pick % len(self.leased)]

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999))
    def release_job(self, pick: int) -> None:
        token, job = self.picked(pick)
        self.run(self.store.release(token, [job]))
        if token in self.model.leases:
            self.model.leases[token].jobs.discard(job)

    @precondition(lambda self: self.leased)
    @rule(picks=st.lists(st.integers(0, 999), max_size=3))
    def renew(self, picks: list[int]) -> None:
        tokens = {self.picked(pick)[0] for pick in picks}
        current = tokens & self.model.leases.keys()
        assert self.run(self.store.renew(list(tokens), 60.0)) == current
        for token in current:
            self.model.leases[token].is_expired = False

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999))
    def end_lease(self, pick: int) -> None:
        token, _ = self.picked(pick)
        self.run(self.store.end_leases([token]))
        self.model.leases.pop(token, None)

    # Time and operators.

    @rule()
    def expire(self) -> None:
        self.raw_db.expire_leases()
        for lease in self.model.leases.values():
            lease.is_expired = True

    @rule()
    def wait(self) -> None:
        self.raw_db.make_due()
        for job in self.model.jobs.values():
            job.is_due = True

    @precondition(lambda self: self.model.jobs)
    @rule(pick=st.integers(0, 999))
    def requeue(self, pick: int) -> None:
        picked = sorted(self.model.jobs)[pick % len(self.model.jobs)]
        job = self.model.jobs[picked]
        requeued = self.run(self.store.requeue(picked, ACT))
        assert (requeued is not None) is (job.status is JobStatus.FAILED)
        if requeued is not None:
            self.model.requeues += 1
            job.status, job.failure, job.is_due = JobStatus.QUEUED, None, True
            job.max_attempts = job.attempts + MAX_ATTEMPTS[job.handler]

    # Invariants.

    @invariant()
    def jobs_match_the_model(self) -> None:
        if not self.model.events:
            return
        items = {int(item.id): item for item in self.run(self.store.jobs(EVERYTHING))}
        assert items.keys() == self.model.jobs.keys()
        for number, item in items.items():
            job = self.model.jobs[number]
            assert item.status is self.model.status(number)
            assert (item.attempts, item.max_attempts) == (job.attempts, job.max_attempts)
            assert item.failure_type is job.failure
            is_over = job.status in (JobStatus.DONE, JobStatus.FAILED)
            assert (item.finished_at is not None) is is_over
            before = self.seen.get(number, JobStatus.QUEUED)
            assert before is item.status or (before, item.status) in TRANSITIONS
            self.seen[number] = item.status

    @invariant()
    def events_match_the_model(self) -> None:
        if not self.model.events:
            return
        items = {item.event_id: item for item in self.run(self.store.events(EVERYTHING))}
        assert items.keys() == self.model.events.keys()
        for event_id, item in items.items():
            event = self.model.events[event_id]
            assert (item.deliveries, item.conflicts) == (event.deliveries, event.conflicts)
            assert item.processing_state is self.model.state(event)

    @invariant()
    def effects_attempts_and_audit_match_the_model(self) -> None:
        if not self.model.events:
            return
        effects = {
            item.idempotency_key: int(item.job_id)
            for item in self.run(self.store.effects(EVERYTHING))
        }
        assert effects == self.model.effects
        failed = sum(job.failed_attempts for job in self.model.jobs.values())
        assert self.raw_db.count("onceward.attempts") == failed
        assert self.raw_db.count("onceward.audit") == self.model.requeues


def check(
    acquire: Callable[[], str], release: Callable[[str], None], *, examples: int, steps: int
) -> None:
    run_state_machine_as_test(
        lambda: JobsMachine(acquire(), release),  # type: ignore[arg-type] # a factory is accepted too
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_sqlite_matches_the_model(tmp_path: Path) -> None:
    numbers = itertools.count()

    def acquire() -> str:
        # Syncing is slow, and this test has no power cuts.
        return f"sqlite:///{tmp_path}/{next(numbers)}.db?synchronous=off"

    check(acquire, lambda _: None, examples=60, steps=40)


def test_postgresql_matches_the_model(postgres_pool: DatabasePool) -> None:
    check(postgres_pool.acquire, postgres_pool.release, examples=10, steps=40)
