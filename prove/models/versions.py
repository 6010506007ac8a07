"""Models of order: events of one object that must not end in an older state.

`Staleness`: a handler has a `version`. Its jobs run in any order and at once; the watermark says
what was applied last. `Order`: a handler has an `ordering_key` and makes an outside call. Its jobs
run in order of arrival, but a call may still be on its way when its job is over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple, TypeAlias

from prove.models.search import Model
from prove.models.tuples import replace_item


class Rule(StrEnum):
    """The rules of the protocol."""

    WATERMARK_IS_ATOMIC = "Compare and set the watermark under one lock."
    WATERMARK_IN_TRANSACTION = "Set the watermark in the handler's transaction."
    WATERMARK_STAYS = "Keep a watermark for as long as a job can be requeued."
    TIES_BY_EVENT_ID = "Decide between equal versions by the event id."
    STALE_IF_LESS = "An event is stale only if its pair (version, event id) is less."
    CHECKED_AT_START = "Check for staleness at the start too: outside calls come first."
    KEY_WAITS_FOR_CALLS = "The next job of a key waits for the open calls of earlier ones."
    FAILED_HEAD_HOLDS = "A job that failed holds up its key."


class Limit(StrEnum):
    """Faults that no rule covers. They are off unless asked for."""

    OLDER_REQUEUED = "Without a version, an operator requeues an event after a newer one began."


class Event(NamedTuple):
    """A version, and the event id that decides between equal versions."""

    version: int
    id: str

    def __str__(self) -> str:
        return f"{self.version}{self.id}"


class JobStatus(StrEnum):
    """The status of a job. One that a worker holds is in progress."""

    QUEUED = auto()
    DONE = auto()
    STALE = auto()
    FAILED = auto()
    CANCELLED = auto()


class Phase(StrEnum):
    """How far a worker has come with its attempt."""

    IDLE = auto()
    CLAIMED = auto()
    CHECKED = auto()  # not stale at the start
    CALLED = auto()
    MARKED = auto()  # the watermark; only without WATERMARK_IN_TRANSACTION


NOBODY = -1


class Job(NamedTuple):
    """A job, and the worker whose lease names it."""

    status: JobStatus = JobStatus.QUEUED
    holder: int = NOBODY


class Worker(NamedTuple):
    """A worker and its attempt."""

    phase: Phase = Phase.IDLE
    job: int = NOBODY
    is_outdated: bool = False
    """Whether a newer event was applied before the attempt began."""


@dataclass(frozen=True)
class Versions:
    """The size of a model of staleness: two workers, and some events of one object."""

    events: tuple[Event, ...] = (Event(1, "a"), Event(2, "b"))
    has_calls: bool = True
    """Whether the handler makes an outside call, before its transaction."""

    def __str__(self) -> str:
        calls = " with outside calls" if self.has_calls else ""
        return f"versions {', '.join(map(str, self.events))}{calls}: workers 2"

    def model(self, without: Collection[Rule] = (), _: Collection[Limit] = ()) -> Model[Ledger]:
        """Return the state machine, without some of its rules."""
        return Staleness(self, without)


class Ledger(NamedTuple):
    """A state of the model of staleness."""

    jobs: tuple[Job, ...]
    workers: tuple[Worker, ...] = (Worker(), Worker())
    watermark: Event | None = None
    applied: Event | None = None
    """The event whose writes the object has."""
    harm: str = ""

    def holds(self, index: int) -> bool:
        """Return whether the worker's lease names its job."""
        return self.jobs[self.workers[index].job].holder == index

    def with_worker(self, index: int, worker: Worker) -> Ledger:
        """Return the state with a worker replaced."""
        return self._replace(workers=replace_item(self.workers, index, worker))

    def with_job(self, index: int, job: Job) -> Ledger:
        """Return the state with a job replaced."""
        return self._replace(jobs=replace_item(self.jobs, index, job))

    def end_attempt(self, index: int, status: JobStatus = JobStatus.QUEUED) -> Ledger:
        """Return the state after an attempt: the job is settled if the worker still holds it."""
        ended = self.with_worker(index, Worker())
        return ended.with_job(self.workers[index].job, Job(status)) if self.holds(index) else ended


LedgerStep: TypeAlias = tuple[str, Ledger]


class Staleness:
    """The state machine of a handler with a version."""

    def __init__(self, size: Versions, without: Collection[Rule] = ()) -> None:
        self._events = size.events
        self._started = Phase.CHECKED if size.has_calls else Phase.CALLED
        self._rules = frozenset(Rule) - frozenset(without)

    def initial(self) -> Ledger:
        """Return the state in which every job is queued."""
        return Ledger((Job(),) * len(self._events))

    def violation(self, state: Ledger) -> str:
        """Return the harm that the last step did."""
        return state.harm

    def steps(self, state: Ledger) -> Iterator[LedgerStep]:
        """Yield the steps of the workers, and of operators."""
        for index, worker in enumerate(state.workers):
            if worker.phase is not Phase.IDLE:
                yield from self._work(state, index, worker)
                yield from self._fault(state, index)
        idle = [i for i, worker in enumerate(state.workers) if worker.phase is Phase.IDLE]
        for number, job in enumerate(state.jobs):
            if idle and job == Job():
                yield self._claim(state, idle[0], number)
            if job.status not in (JobStatus.QUEUED, JobStatus.DONE):
                step = f"an operator requeues {self._events[number]}"
                yield step, state.with_job(number, Job())
            if job.status is JobStatus.DONE:
                step = f"an operator reruns {self._events[number]}"
                yield step, state.with_job(number, Job())
        if state.watermark and Rule.WATERMARK_STAYS not in self._rules:
            yield "the watermark is purged", state._replace(watermark=None)

    def _claim(self, state: Ledger, index: int, number: int) -> LedgerStep:
        event = self._events[number]
        is_outdated = state.applied is not None and event < state.applied
        claimed = state.with_job(number, Job(holder=index))
        worker = Worker(Phase.CLAIMED, number, is_outdated)
        return f"W{index + 1} claims {event}", claimed.with_worker(index, worker)

    def _fault(self, state: Ledger, index: int) -> Iterator[LedgerStep]:
        yield f"W{index + 1} crashes or retries later", state.end_attempt(index)
        if state.holds(index):
            job = state.workers[index].job
            yield f"W{index + 1} loses its lease", state.with_job(job, Job())
            yield f"the job of W{index + 1} fails", state.end_attempt(index, JobStatus.FAILED)
            cancelled = state.with_job(job, Job(JobStatus.CANCELLED))
            yield f"an operator cancels {self._events[job]}", cancelled

    def _work(self, state: Ledger, index: int, worker: Worker) -> Iterator[LedgerStep]:
        name = f"W{index + 1}"
        match worker.phase:
            case Phase.CLAIMED:
                yield from self._start(state, index, worker, name)
            case Phase.CHECKED:
                called = state.with_worker(index, worker._replace(phase=Phase.CALLED))
                if worker.is_outdated:
                    called = called._replace(harm="an outside call is made for a stale event")
                yield f"{name} makes its outside call", called
            case Phase.CALLED if Rule.WATERMARK_IN_TRANSACTION not in self._rules:
                yield from self._mark(state, index, worker, name)
            case Phase.CALLED | Phase.MARKED if state.holds(index):
                yield from self._commit(state, index, name)

    def _start(self, state: Ledger, index: int, worker: Worker, name: str) -> Iterator[LedgerStep]:
        event = self._events[worker.job]
        if Rule.CHECKED_AT_START in self._rules and self._is_stale(event, state.watermark):
            yield f"{name} finds {event} stale", self._stale(state, index)
        else:
            started = state.with_worker(index, worker._replace(phase=self._started))
            yield f"{name} starts {event}", started

    def _mark(self, state: Ledger, index: int, worker: Worker, name: str) -> Iterator[LedgerStep]:
        """Set the watermark in a transaction of its own, before the handler's."""
        event = self._events[worker.job]
        if self._is_stale(event, state.watermark):
            yield f"{name} finds {event} stale", self._stale(state, index)
        else:
            marked = state.with_worker(index, worker._replace(phase=Phase.MARKED))
            yield f"{name} commits the watermark {event}", marked._replace(watermark=event)

    def _commit(self, state: Ledger, index: int, name: str) -> Iterator[LedgerStep]:
        """Commit the handler's writes and `done`, with the watermark if it belongs there."""
        worker = state.workers[index]
        event = self._events[worker.job]
        is_compared = Rule.WATERMARK_IS_ATOMIC in self._rules and worker.phase is Phase.CALLED
        if is_compared and self._is_stale(event, state.watermark):
            yield f"{name} finds {event} stale", self._stale(state, index)
            return
        done = state.end_attempt(index, JobStatus.DONE)._replace(applied=event)
        if worker.phase is Phase.CALLED:
            done = done._replace(watermark=event)
        if state.applied is not None and event < state.applied:
            done = done._replace(harm="an older event overwrites a newer one")
        yield f"{name} commits {event}", done

    def _is_stale(self, event: Event, watermark: Event | None) -> bool:
        if watermark is None:
            return False
        if Rule.STALE_IF_LESS not in self._rules:
            return event <= watermark
        if Rule.TIES_BY_EVENT_ID not in self._rules:
            return event.version < watermark.version
        return event < watermark

    def _stale(self, state: Ledger, index: int) -> Ledger:
        event = self._events[state.workers[index].job]
        stale = state.end_attempt(index, JobStatus.STALE)
        if state.applied is None or state.applied <= event:
            stale = stale._replace(harm="an event ends stale, and no newer one was applied")
        return stale


@dataclass(frozen=True)
class Key:
    """The size of a model of order: events of one ordering key, and two workers."""

    jobs: int = 2
    max_time: int = 2

    def __str__(self) -> str:
        return f"events of a key with outside calls: {self.jobs}, workers 2, ticks {self.max_time}"

    def model(self, without: Collection[Rule] = (), limits: Collection[Limit] = ()) -> Model[Queue]:
        """Return the state machine, without some of its rules and with some limits."""
        return Order(self, without, limits)


class Call(NamedTuple):
    """The outside call of a job."""

    deadline: int = 0
    """0: there was none."""
    is_on_its_way: bool = False
    is_applied: bool = False


class Queue(NamedTuple):
    """A state of the model of order."""

    now: int
    jobs: tuple[Job, ...]
    calls: tuple[Call, ...]
    workers: tuple[Worker, ...] = (Worker(), Worker())
    last: int = NOBODY
    """The latest event whose call was applied."""
    harm: str = ""

    def holds(self, index: int) -> bool:
        """Return whether the worker's lease names its job."""
        return self.jobs[self.workers[index].job].holder == index

    def with_worker(self, index: int, worker: Worker) -> Queue:
        """Return the state with a worker replaced."""
        return self._replace(workers=replace_item(self.workers, index, worker))

    def with_job(self, index: int, job: Job) -> Queue:
        """Return the state with a job replaced."""
        return self._replace(jobs=replace_item(self.jobs, index, job))

    def with_call(self, index: int, call: Call) -> Queue:
        """Return the state with a call replaced."""
        return self._replace(calls=replace_item(self.calls, index, call))

    def end_attempt(self, index: int, status: JobStatus = JobStatus.QUEUED) -> Queue:
        """Return the state after an attempt: the job is settled if the worker still holds it."""
        ended = self.with_worker(index, Worker())
        return ended.with_job(self.workers[index].job, Job(status)) if self.holds(index) else ended


QueueStep: TypeAlias = tuple[str, Queue]


class Order:
    """The state machine of a handler with an ordering key. A call takes one tick at most."""

    def __init__(
        self, size: Key, without: Collection[Rule] = (), limits: Collection[Limit] = ()
    ) -> None:
        self._size = size
        self._rules = frozenset(Rule) - frozenset(without)
        self._limits = frozenset(limits)

    def initial(self) -> Queue:
        """Return the state in which every job is queued."""
        return Queue(0, (Job(),) * self._size.jobs, (Call(),) * self._size.jobs)

    def violation(self, state: Queue) -> str:
        """Return the harm that the last step did."""
        return state.harm

    def steps(self, state: Queue) -> Iterator[QueueStep]:
        """Yield the steps of time, the workers, the other side and operators."""
        arriving = any(
            call.is_on_its_way and call.deadline == state.now + 1 for call in state.calls
        )
        if state.now < self._size.max_time and not arriving:
            yield "time passes", state._replace(now=state.now + 1)
        for index, worker in enumerate(state.workers):
            if worker.phase is not Phase.IDLE:
                yield from self._work(state, index, worker)
                yield from self._fault(state, index)
        idle = [i for i, worker in enumerate(state.workers) if worker.phase is Phase.IDLE]
        for number, job in enumerate(state.jobs):
            if idle and job == Job() and self._may_run(state, number):
                claimed = state.with_job(number, Job(holder=idle[0]))
                worker = Worker(Phase.CLAIMED, number)
                step = f"W{idle[0] + 1} claims {_name(number)}"
                yield step, claimed.with_worker(idle[0], worker)
            if job.status in (JobStatus.FAILED, JobStatus.CANCELLED):
                yield from self._requeue(state, number)
            yield from self._arrive(state, number)

    def _may_run(self, state: Queue, number: int) -> bool:
        """Return whether the claim's own check lets a job run."""
        if any(job.holder != NOBODY for job in state.jobs):
            return False
        holding = {JobStatus.QUEUED}
        if Rule.FAILED_HEAD_HOLDS in self._rules:
            holding.add(JobStatus.FAILED)
        if any(job.status in holding for job in state.jobs[:number]):
            return False
        is_waiting = any(state.now < call.deadline for call in state.calls[:number])
        return not (is_waiting and Rule.KEY_WAITS_FOR_CALLS in self._rules)

    def _work(self, state: Queue, index: int, worker: Worker) -> Iterator[QueueStep]:
        name, event = f"W{index + 1}", _name(worker.job)
        call = state.calls[worker.job]
        match worker.phase:
            case Phase.CLAIMED if call.is_applied:
                yield f"{name} reads the result of {event}", self._called(state, index)
            case Phase.CLAIMED if state.holds(index) and call.deadline <= state.now:
                intent = state.with_call(worker.job, Call(state.now + 1))
                checked = worker._replace(phase=Phase.CHECKED)
                yield f"{name} commits its intent", intent.with_worker(index, checked)
            case Phase.CHECKED if state.now < call.deadline:
                sent = self._called(state, index)
                on_its_way = call._replace(is_on_its_way=True)
                yield f"{name} sends for {event}", sent.with_call(worker.job, on_its_way)
            case Phase.CALLED if state.holds(index) and call.is_applied:
                yield f"{name} is done", state.end_attempt(index, JobStatus.DONE)

    def _called(self, state: Queue, index: int) -> Queue:
        return state.with_worker(index, state.workers[index]._replace(phase=Phase.CALLED))

    def _arrive(self, state: Queue, number: int) -> Iterator[QueueStep]:
        """Apply a call that is on its way, or lose it."""
        call = state.calls[number]
        if not call.is_on_its_way:
            return
        lost = state.with_call(number, call._replace(is_on_its_way=False))
        yield f"the call of {_name(number)} is lost", lost
        applied = lost.with_call(number, Call(call.deadline, is_applied=True))
        if number < state.last:
            applied = applied._replace(harm="the call of an older event is applied last")
        applied = applied._replace(last=number)
        yield f"the call of {_name(number)} is applied", applied

    def _fault(self, state: Queue, index: int) -> Iterator[QueueStep]:
        yield f"W{index + 1} crashes or retries later", state.end_attempt(index)
        if state.holds(index):
            job = state.workers[index].job
            yield f"W{index + 1} loses its lease", state.with_job(job, Job())
            yield f"{_name(job)} fails for good", state.end_attempt(index, JobStatus.FAILED)
            cancelled = state.with_job(job, Job(JobStatus.CANCELLED))
            yield f"an operator cancels {_name(job)}", cancelled

    def _requeue(self, state: Queue, number: int) -> Iterator[QueueStep]:
        """Requeue a job: while no later one has begun, or against the order."""
        later = zip(state.jobs[number + 1 :], state.calls[number + 1 :], strict=True)
        is_in_order = all(pair == (Job(), Call()) for pair in later)
        is_failed = state.jobs[number].status is JobStatus.FAILED
        if is_in_order or is_failed or Limit.OLDER_REQUEUED in self._limits:
            yield f"an operator requeues {_name(number)}", state.with_job(number, Job())


def _name(number: int) -> str:
    return f"event {'ABC'[number]}"
