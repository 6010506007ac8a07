"""Models of reclaiming the jobs of a dead worker.

`Presence`: a session stands for the worker W1 and holds a lock; W2 looks whether the lock is free.
The session may be lost although W1 lives. W1 notices that within the grace time, or is dead.
`Blame`: a process runs several jobs, and one of them kills it. It must be found, in a bounded
number of kills, without charging the others.
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

    RECLAIM_UNDER_LOCK = "The transaction that reclaims holds the lock of the dead worker."
    GRACE = "Reclaim only after a lock was free for the grace time."
    MARK_IS_CLEARED = "A lock that is held again clears the mark of its worker."
    NUMBER_IS_WITHDRAWN = "A worker that lost its session renews its leases without its number."
    SESSION_IS_NOT_LENT = "Never lend the session with the lock to a handler: a reset frees it."
    COUNT_ONLY_THE_DEAD = "Count an attempt when a lease is reclaimed, not when a lock is free."
    STARTED_ARE_MARKED = "Mark the jobs that may have started: they run alone next time."
    START_IN_ORDER = "Start jobs in the order of their leases: the first ones may have started."
    SOLO_IS_ALONE = "A marked job is alone in its process, not only in its lease."
    CHARGE_ONLY_SOLO = "Count an attempt only for a job that ran alone."


class Limit(StrEnum):
    """Faults that no rule covers. They are off unless asked for."""

    KILLED_FROM_OUTSIDE = "A process is killed from outside while a marked job runs in it."


# Presence.


@dataclass(frozen=True)
class Session:
    """The size of a model of presence: one worker, one that looks, and one job."""

    is_timely: bool = True
    """Whether W1, while it lives, notices a lost session within the grace time."""
    max_attempts: int = 2

    def __str__(self) -> str:
        speed = "in time" if self.is_timely else "late"
        return f"a worker that notices a lost session {speed}: attempts {self.max_attempts}"

    def model(self, without: Collection[Rule] = (), _: Collection[Limit] = ()) -> Model[Watch]:
        """Return the state machine, without some of its rules."""
        return Presence(self, without)


class Life(StrEnum):
    """What W1 knows about its session."""

    PRESENT = auto()
    CUT = auto()  # lost, and not yet noticed
    WITHDRAWN = auto()  # noticed: its lease only expires
    BACK = auto()  # the lock is held again, the lease not yet renewed
    DEAD = auto()


class Mark(StrEnum):
    """Since when W1 is taken for dead."""

    NONE = auto()
    FRESH = auto()
    OLD = auto()  # for the grace time


class Watch(NamedTuple):
    """A state of the model of presence."""

    life: Life = Life.PRESENT
    is_locked: bool = True
    has_number: bool = True
    """Whether W1's lease names the number that the lock is on."""
    mark: Mark = Mark.NONE
    saw_free: bool = False
    """W2 has seen the lock free, and has not reclaimed yet; only without RECLAIM_UNDER_LOCK."""
    attempts: int = 0
    is_reclaimed: bool = False


WatchStep: TypeAlias = tuple[str, Watch]


class Presence:
    """The state machine of the lock that stands for W1."""

    def __init__(self, size: Session, without: Collection[Rule] = ()) -> None:
        self._size = size
        self._rules = frozenset(Rule) - frozenset(without)

    def initial(self) -> Watch:
        """Return the state in which W1 lives, holds its lock and a lease."""
        return Watch()

    def violation(self, state: Watch) -> str:
        """Return the promise that the state breaks. A worker that is late may lose its jobs."""
        if state.life is Life.DEAD:
            return ""
        if state.is_reclaimed and state.is_locked:
            return "a worker that holds its lock loses its jobs"
        if state.is_reclaimed and self._size.is_timely:
            return "a worker that lives loses its jobs"
        is_exhausted = state.attempts == self._size.max_attempts
        return "a job is counted out, and its worker lives" if is_exhausted else ""

    def steps(self, state: Watch) -> Iterator[WatchStep]:
        """Yield the steps of W1, W2 and time, until the lease is reclaimed."""
        if state.is_reclaimed:
            return
        if state.life is not Life.DEAD:
            yield from self._worker(state)
        yield from self._observer(state)
        is_awaited = self._size.is_timely and state.life is Life.CUT
        if state.mark is Mark.FRESH and not is_awaited:
            yield "the grace time passes", state._replace(mark=Mark.OLD)

    def _worker(self, state: Watch) -> Iterator[WatchStep]:
        yield "W1 dies", state._replace(life=Life.DEAD, is_locked=False)
        match state.life:
            case Life.PRESENT:
                yield "W1's session is lost", state._replace(life=Life.CUT, is_locked=False)
                if Rule.SESSION_IS_NOT_LENT not in self._rules:
                    yield "W1 resets its session after a job", state._replace(is_locked=False)
            case Life.CUT:
                noticed = state._replace(life=Life.WITHDRAWN)
                if Rule.NUMBER_IS_WITHDRAWN in self._rules:
                    noticed = self._renewed(noticed._replace(has_number=False))
                yield "W1 notices that its session is lost", noticed
            case Life.WITHDRAWN:
                yield "W1 takes its lock again", state._replace(life=Life.BACK, is_locked=True)
            case Life.BACK:
                present = state._replace(life=Life.PRESENT, has_number=True)
                yield "W1 renews its lease", self._renewed(present)

    def _renewed(self, state: Watch) -> Watch:
        is_cleared = Rule.MARK_IS_CLEARED in self._rules
        return state._replace(mark=Mark.NONE) if is_cleared else state

    def _observer(self, state: Watch) -> Iterator[WatchStep]:
        """Look at the lock, and reclaim if it has been free for the grace time."""
        is_due = state.mark is Mark.OLD or Rule.GRACE not in self._rules
        if state.saw_free:
            yield "W2 reclaims", state._replace(is_reclaimed=True)
        elif not state.has_number:
            return
        elif state.is_locked:
            if state.mark is not Mark.NONE and Rule.MARK_IS_CLEARED in self._rules:
                yield "W2 finds the lock held", state._replace(mark=Mark.NONE)
        elif is_due and Rule.RECLAIM_UNDER_LOCK in self._rules:
            yield "W2 finds the lock free, and reclaims", state._replace(is_reclaimed=True)
        elif is_due:
            yield "W2 finds the lock free", state._replace(saw_free=True)
        elif state.mark is Mark.NONE:
            is_early = Rule.COUNT_ONLY_THE_DEAD not in self._rules
            marked = state._replace(mark=Mark.FRESH, attempts=state.attempts + is_early)
            yield "W2 finds the lock free, and marks W1", marked


# Blame.


@dataclass(frozen=True)
class Process:
    """The size of a model of blame: a process with some slots, and jobs, one of them poison."""

    jobs: int = 3
    slots: int = 2
    max_attempts: int = 2

    def __str__(self) -> str:
        size = f"slots {self.slots}, attempts {self.max_attempts}"
        return f"a poison job among {self.jobs}: {size}"

    def model(self, without: Collection[Rule] = (), limits: Collection[Limit] = ()) -> Model[Batch]:
        """Return the state machine, without some of its rules and with some limits."""
        return Blame(self, without, limits)


class JobStatus(StrEnum):
    """The status of a job. A leased or running one is in the process."""

    QUEUED = auto()
    LEASED = auto()
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()


class Job(NamedTuple):
    """A job, whether it must run alone, and its attempts."""

    status: JobStatus = JobStatus.QUEUED
    solo: bool = False
    attempts: int = 0


class Batch(NamedTuple):
    """A state of the model of blame. The last job is the poison one."""

    jobs: tuple[Job, ...]
    leased: tuple[int, ...] = ()
    """The unsettled jobs of the process, in the order of their leases."""
    kills: int = 0

    def with_job(self, index: int, job: Job) -> Batch:
        """Return the state with a job replaced."""
        return self._replace(jobs=replace_item(self.jobs, index, job))


BatchStep: TypeAlias = tuple[str, Batch]


class Blame:
    """The state machine of a process and its jobs. A killed process is started again at once."""

    def __init__(
        self, size: Process, without: Collection[Rule] = (), limits: Collection[Limit] = ()
    ) -> None:
        self._size = size
        self._poison = size.jobs - 1
        self._rules = frozenset(Rule) - frozenset(without)
        self._limits = frozenset(limits)

    def initial(self) -> Batch:
        """Return the state in which every job is queued."""
        return Batch((Job(),) * self._size.jobs)

    def violation(self, state: Batch) -> str:
        """Return the promise that the state breaks."""
        if any(job.attempts for job in state.jobs[: self._poison]):
            return "an innocent job is charged with an attempt"
        max_kills = self._size.max_attempts + 1
        return "the poison job kills without limit" if state.kills > max_kills else ""

    def steps(self, state: Batch) -> Iterator[BatchStep]:
        """Yield the steps of the process and its jobs."""
        for index, job in enumerate(state.jobs):
            if job.status is JobStatus.QUEUED and self._may_claim(state, job):
                leased = state.with_job(index, job._replace(status=JobStatus.LEASED))
                claimed = leased._replace(leased=(*state.leased, index))
                yield f"the process leases {self._name(index)}", claimed
        yield from self._start(state)
        if state.leased and Limit.KILLED_FROM_OUTSIDE in self._limits:
            yield "the process is killed from outside", self._killed(state)
        for index, job in enumerate(state.jobs):
            if job.status is not JobStatus.RUNNING:
                continue
            if index == self._poison:
                yield "the poison job kills the process", self._killed(state)
            else:
                done = state.with_job(index, job._replace(status=JobStatus.DONE))
                left = tuple(number for number in state.leased if number != index)
                yield f"{self._name(index)} is done", done._replace(leased=left)

    def _may_claim(self, state: Batch, job: Job) -> bool:
        """Return whether a job may join those that the process has."""
        if Rule.SOLO_IS_ALONE not in self._rules or not state.leased:
            return True
        return not job.solo and not any(state.jobs[index].solo for index in state.leased)

    def _start(self, state: Batch) -> Iterator[BatchStep]:
        """Start the next job in the order of the leases, while a slot is free."""
        waiting = [i for i in state.leased if state.jobs[i].status is JobStatus.LEASED]
        if len(state.leased) - len(waiting) == self._size.slots:
            return
        for index in waiting[:1] if Rule.START_IN_ORDER in self._rules else waiting:
            running = state.jobs[index]._replace(status=JobStatus.RUNNING)
            yield f"{self._name(index)} starts", state.with_job(index, running)

    def _killed(self, state: Batch) -> Batch:
        """Reclaim all jobs of the process: charge those that ran alone, mark the others."""
        reclaimed = state._replace(leased=(), kills=state.kills + 1)
        for place, index in enumerate(state.leased):
            job = state.jobs[index]
            attempts = job.attempts
            if job.solo or Rule.CHARGE_ONLY_SOLO not in self._rules:
                attempts += 1
            may_have_started = place < self._size.slots and Rule.STARTED_ARE_MARKED in self._rules
            is_over = attempts == self._size.max_attempts
            status = JobStatus.FAILED if is_over else JobStatus.QUEUED
            reclaimed = reclaimed.with_job(
                index, Job(status, job.solo or may_have_started, attempts)
            )
        return reclaimed

    def _name(self, index: int) -> str:
        return "the poison job" if index == self._poison else f"job {'ABCD'[index]}"
