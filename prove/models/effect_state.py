"""The state of the model of `effects.call`: rows, workers, requests on their way, and time."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import NamedTuple

from prove.models.tuples import replace_item


class Status(StrEnum):
    """The status of the effect's row."""

    ABSENT = auto()
    PENDING = auto()
    UNKNOWN = auto()
    SUCCEEDED = auto()
    FAILED = auto()  # known not to have been applied


OPEN = (Status.PENDING, Status.UNKNOWN)


class JobStatus(StrEnum):
    """The status of a job. One that a worker holds is in progress."""

    QUEUED = auto()
    DONE = auto()
    FAILED = auto()
    CANCELLED = auto()


class Phase(StrEnum):
    """How far a worker has come with its attempt."""

    IDLE = auto()
    READY = auto()  # the handler is about to call
    FOUND_NOTHING = auto()  # only without START_IS_ATOMIC
    COMMITTED = auto()  # the intent; only without DEADLINE_FROM_BEFORE
    UNCONFIRMED = auto()  # the intent; only without WITHDRAW_OWN_INTENT
    CALLING = auto()
    CHECKED = auto()  # the deadline; only with FROZEN_BEFORE_SEND
    SENT = auto()
    APPLIED = auto()  # the response says so
    REFUSED = auto()  # the response says 'not applied', or the intent is withdrawn
    RECONCILED = auto()  # the other side says 'not applied'
    RETURNED = auto()  # effects.call returned a result
    RAISED = auto()  # effects.call raised, and the handler swallowed it


NOBODY = -1
NEVER = -1


class Row(NamedTuple):
    """The effect's row in the database."""

    status: Status = Status.ABSENT
    call_no: int = 0
    job: int = NOBODY
    deadline: int = 0
    first_call_at: int = 0
    doubt: bool = False


class Job(NamedTuple):
    """A job, and the lease that names it."""

    status: JobStatus = JobStatus.QUEUED
    holder: int = NOBODY
    """The worker whose lease names the job."""


class Worker(NamedTuple):
    """A worker, and the call that it makes for its job."""

    phase: Phase = Phase.IDLE
    job: int = NOBODY
    call_no: int = 0
    deadline: int = 0
    """The worker's own, by its own clock."""


class Request(NamedTuple):
    """A call on its way to the other side."""

    call_no: int
    deadline: int


class State(NamedTuple):
    """The database, the workers, the other side and a person."""

    now: int
    row: Row
    jobs: tuple[Job, ...]
    workers: tuple[Worker, ...]
    requests: tuple[Request, ...] = ()
    """Sent, and not yet received by the other side."""
    applied_at: int = NEVER
    looked_at: int = 0
    """The number of the call that a person found not to have happened."""
    harm: str = ""

    def holds(self, index: int) -> bool:
        """Return whether the worker's lease names its job."""
        return self.jobs[self.workers[index].job].holder == index

    def may_call(self, index: int) -> bool:
        """Return whether the worker's lease names its job, and the job is not over."""
        return self.jobs[self.workers[index].job] == Job(holder=index)

    def with_worker(self, index: int, worker: Worker) -> State:
        """Return the state with a worker replaced."""
        return self._replace(workers=replace_item(self.workers, index, worker))

    def with_job(self, index: int, job: Job) -> State:
        """Return the state with a job replaced."""
        return self._replace(jobs=replace_item(self.jobs, index, job))

    def enter(self, index: int, phase: Phase) -> State:
        """Return the state with a worker in another phase."""
        return self.with_worker(index, self.workers[index]._replace(phase=phase))

    def end_attempt(self, index: int, status: JobStatus = JobStatus.QUEUED) -> State:
        """Return the state after an attempt: the job is settled if the worker still holds it."""
        ended = self.with_worker(index, Worker())
        return ended.with_job(self.workers[index].job, Job(status)) if self.holds(index) else ended
