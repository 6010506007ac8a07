"""A state machine that applies each operation to a real store and to a model of the queue."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from onceward.errors import LeaseLost, NotInState
from onceward.model.admin import Pausable
from onceward.model.events import Arrival, Outcome
from onceward.model.jobs import (
    CANCELLABLE,
    REQUEUEABLE,
    TRANSITIONS,
    Fail,
    FailureType,
    HandlerEntry,
    Ignore,
    JobStatus,
    QueueRules,
    Reschedule,
    Route,
)
from support.database import RawDatabase
from tests.factories import ACT, EVERYTHING, SOURCES, arrival, claim, make_store, working
from tests.queue_model import ModelJob, ModelLease, QueueModel

T = TypeVar("T")

HANDLERS = (
    HandlerEntry("credit", 2, (Route("invoice.paid"),), QueueRules(ordering_key="customer")),
    HandlerEntry(
        "notify",
        3,
        (Route("invoice.*"), Route("order.new", "stripe")),
        QueueRules(ordering_key="customer", holds_key=False, concurrency=2),
    ),
    HandlerEntry("log", 2, (Route("order.new"),)),
)
TYPES = ("invoice.paid", "order.new", "unwanted", "invoice.late")
WANTED = {
    ("stripe", "invoice.paid"): ("credit", "notify"),
    ("stripe", "invoice.late"): ("notify",),
    ("stripe", "order.new"): ("log", "notify"),
    ("ingest", "invoice.paid"): ("credit", "notify"),
    ("ingest", "invoice.late"): ("notify",),
    ("ingest", "order.new"): ("log",),
}
CUSTOMERS = ("ann", "bob", None)
EVENTS = 13
SLOTS = 2
MAX_ATTEMPTS = {entry.name: entry.max_attempts for entry in HANDLERS}


def make_delivery(number: int, version: int) -> Arrival:
    """Return a delivery of one of a few events, each of one source, type and customer."""
    source = SOURCES[number // 3 % 2]
    payload = {"customer": CUSTOMERS[number % 3], "version": version}
    body = {"payload": payload} if source == "ingest" else payload
    return arrival(
        f"evt_{number}",
        source=source,
        type=TYPES[number % 4],
        body=json.dumps(body).encode(),
    )


class JobsMachine(RuleBasedStateMachine):
    """Applies each operation to a real store and to the model."""

    def __init__(self, url: str, release: Callable[[str], None]) -> None:
        super().__init__()
        self.release = release
        self.runner = asyncio.Runner()
        self.raw_db = RawDatabase(url)
        self.store = make_store(url, allow_weak_durability=True)
        self.model = QueueModel(HANDLERS)
        self.leased: list[tuple[str, int]] = []
        self.settled: list[int] = []
        """Jobs with a key that were settled since the last claim: a worker's news for the queue."""
        self.has_lost_news = False
        """Whether a worker died with such news. The next job of its key waits for a reclaim."""
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

    @rule(deliveries=st.lists(st.tuples(st.integers(0, EVENTS - 1), st.integers(0, 1)), max_size=6))
    def record(self, deliveries: list[tuple[int, int]]) -> None:
        batch = [make_delivery(number, version) for number, version in deliveries]
        expected = [self.model.deliver(delivery) for delivery in batch]
        receipts = self.run(self.store.record(batch))
        assert [receipt.outcome for receipt in receipts] == expected
        outcomes = zip(batch, expected, strict=True)
        self.add_jobs([delivery for delivery, outcome in outcomes if outcome is Outcome.RECORDED])

    def add_jobs(self, recorded: list[Arrival]) -> None:
        items = self.run(self.store.jobs(EVERYTHING)) if recorded else []
        for delivery in recorded:
            jobs = {
                item.handler: int(item.id)
                for item in items
                if item.external_event_id == delivery.event_id
            }
            assert sorted(jobs) == sorted(WANTED.get((delivery.source, delivery.type), ()))
            key = CUSTOMERS[int(delivery.event_id.removeprefix("evt_")) % 3]
            for handler, job in jobs.items():
                self.model.add_job(delivery.event_id, job, handler, key)

    # Workers.

    @rule(
        limit=st.integers(1, 6),
        solo=st.sampled_from([False, False, True]),
        looks=st.booleans(),
        wanted=st.sampled_from(
            [
                {"credit": 4, "notify": 4, "log": 4},
                {"log": 1, "notify": 3, "credit": 2},
                {"credit": 2, "notify": 0},
                {"notify": 4},
            ]
        ),
    )
    def claim(self, limit: int, *, solo: bool, looks: bool, wanted: dict[str, int]) -> None:
        looks = looks or self.has_lost_news
        if looks:
            self.model.reclaim()
            self.has_lost_news = False
        claimed = self.run(
            claim(
                self.store,
                limit=limit,
                solo=solo,
                handlers=wanted,
                slots=SLOTS,
                settled=self.settled,
                looks_for_lost=looks,
            )
        )
        self.settled = []
        if waiting := self.model.waiting():
            self.raw_db.postpone(waiting)  # a job that died alone would be due in a second
        taken = [job.id for job in claimed.lease.jobs] if claimed.lease else []
        self.model.check_claim(taken, wanted, limit=1 if solo else limit, solo=solo)
        if claimed.lease:
            self.model.leases[claimed.lease.token] = ModelLease(taken, SLOTS)
            self.leased += [(claimed.lease.token, job) for job in taken]
            for job in claimed.lease.jobs:
                expected = self.model.jobs[job.id]
                assert (job.attempts, job.max_attempts) == (
                    expected.attempts,
                    expected.max_attempts,
                )
                assert job.ordering_key == expected.key

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
            is_first = await work.effects(job).once(key)
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
    @rule(
        pick=st.integers(0, 999),
        failure=st.sampled_from([FailureType.PERMANENT, FailureType.EXHAUSTED]),
    )
    def settle_fail(self, pick: int, failure: FailureType) -> None:
        if job := self.settle_error(pick, Fail(failure, "no use")):
            self.model.fail_attempt(job, is_last=True)
            job.failure = failure
            job.solo = False
            self.note_settled(job)

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999))
    def settle_ignore(self, pick: int) -> None:
        if job := self.settle_error(pick, Ignore("stale")):
            job.status, job.failure, job.solo = JobStatus.IGNORED, FailureType.STALE, False
            job.attempts += 1
            self.note_settled(job)

    def settle_error(self, pick: int, settlement: Reschedule | Fail | Ignore) -> ModelJob | None:
        token, job = self.picked(pick)
        expected = self.model.may_settle(token, job)
        assert self.run(self.store.settle_error(token, job, settlement, 0.1)) is expected
        if not expected:
            return None
        self.model.leases[token].jobs.remove(job)
        return self.model.jobs[job]

    def finish(self, id: int) -> None:
        job = self.model.jobs[id]
        job.status = JobStatus.DONE
        job.attempts += 1
        self.note_settled(job)

    def note_settled(self, job: ModelJob) -> None:
        """Remember the news that a worker has for its next claim."""
        self.settled += [
            number for number, each in self.model.jobs.items() if each is job and job.key
        ]

    def picked(self, pick: int) -> tuple[str, int]:
        """Return a token and a job of its lease, or of a lost one: late workers settle as well."""
        current = [leased for leased in self.leased if self.model.may_settle(*leased)]
        leased = current if current and pick % 4 else self.leased
        return leased[pick % len(leased)]

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999))
    def release_job(self, pick: int) -> None:
        token, job = self.picked(pick)
        self.run(self.store.release(token, [job]))
        lease = self.model.leases.get(token)
        if lease and job in lease.jobs:
            lease.jobs.remove(job)

    @precondition(lambda self: self.leased)
    @rule(picks=st.lists(st.integers(0, 999), max_size=3))
    def renew(self, picks: list[int]) -> None:
        tokens = {self.picked(pick)[0] for pick in picks}
        current = tokens & self.model.leases.keys()
        assert self.run(self.store.renew(list(tokens), 60.0)).held == current
        for token in current:
            self.model.leases[token].is_over = False

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 999))
    def end_lease(self, pick: int) -> None:
        """End a lease whose jobs are all settled, as a worker does."""
        token, _ = self.picked(pick)
        lease = self.model.leases.get(token)
        if lease and not any(self.model.may_settle(token, job) for job in lease.jobs):
            self.run(self.store.end_leases([token], self.settled))
            self.settled = []
            del self.model.leases[token]

    # Time, death and operators.

    @rule(forgets=st.booleans())
    def expire(self, *, forgets: bool) -> None:
        """Let every worker die or freeze. A dead one takes its news with it."""
        self.raw_db.expire_leases()
        for lease in self.model.leases.values():
            lease.is_over = True
        held = self.model.leased()
        if forgets:
            self.has_lost_news |= bool(held.intersection(self.settled))
            self.settled = [job for job in self.settled if job not in held]

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
        assert (requeued is not None) is (job.status in REQUEUEABLE)
        if requeued is not None:
            self.model.audited += 1
            job.status, job.failure, job.is_due = JobStatus.QUEUED, None, True
            job.max_attempts = job.attempts + MAX_ATTEMPTS[job.handler]

    @precondition(lambda self: self.model.jobs)
    @rule(pick=st.integers(0, 999))
    def cancel(self, pick: int) -> None:
        picked = sorted(self.model.jobs)[pick % len(self.model.jobs)]
        job = self.model.jobs[picked]
        if job.status not in CANCELLABLE:
            with pytest.raises(NotInState):
                self.run(self.store.cancel(picked, ACT))
            return
        assert self.run(self.store.cancel(picked, ACT)) is not None
        self.model.audited += 1
        job.status, job.failure = JobStatus.CANCELLED, None
        for lease in self.model.leases.values():
            if picked in lease.jobs:
                lease.jobs.remove(picked)

    @rule(
        kind=st.sampled_from(Pausable),
        number=st.integers(0, 2),
    )
    def pause_or_resume(self, kind: Pausable, number: int) -> None:
        if kind is Pausable.HANDLER:
            paused, name = self.model.paused_handlers, HANDLERS[number].name
        else:
            paused, name = self.model.paused_sources, SOURCES[number % 2]
        act = self.store.resume if name in paused else self.store.pause
        assert self.run(act(kind, name, ACT)) is not None
        self.model.audited += 1
        paused ^= {name}

    @rule()
    def wake_parked(self) -> None:
        """Run the safety net, which must not let anything run too early."""
        self.run(self.store.wake_parked())

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
            is_over = job.status is not JobStatus.QUEUED
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
        assert self.raw_db.count("onceward.audit") == self.model.audited
