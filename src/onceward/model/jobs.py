"""Jobs: their states, their leases, and how an attempt ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple


class JobStatus(StrEnum):
    """The state of a job. `in_progress` is a queued job under a lease."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    FAILED = "failed"
    IGNORED = "ignored"
    CANCELLED = "cancelled"


class FailureType(StrEnum):
    """Why a job failed."""

    PERMANENT = "permanent"
    EXHAUSTED = "exhausted"
    HELD = "held"
    """The job never ran: an operator must requeue it first."""


TRANSITIONS: Final = frozenset(
    {
        (JobStatus.QUEUED, JobStatus.IN_PROGRESS),
        (JobStatus.IN_PROGRESS, JobStatus.DONE),
        (JobStatus.IN_PROGRESS, JobStatus.QUEUED),
        (JobStatus.IN_PROGRESS, JobStatus.FAILED),
        (JobStatus.FAILED, JobStatus.QUEUED),
        (JobStatus.CANCELLED, JobStatus.QUEUED),
    }
)
"""Every legal transition. The last two are an operator's requeue."""

REQUEUEABLE: Final = frozenset(start for start, end in TRANSITIONS if end is JobStatus.QUEUED) - {
    JobStatus.IN_PROGRESS
}
"""The states from which an operator may requeue a job."""


@dataclass(frozen=True, slots=True)
class Route:
    """The event types a handler subscribes to. A `source` of None means any source."""

    pattern: str
    source: str | None = None

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern ends in ``*`` and so matches a prefix."""
        return self.pattern.endswith("*")

    @property
    def literal(self) -> str:
        """The part of the pattern that is matched literally."""
        return self.pattern.removesuffix("*")

    def matches(self, source: str, type: str) -> bool:
        """Return whether an event of this source and type becomes a job."""
        if self.source not in (None, source):
            return False
        return type.startswith(self.literal) if self.is_prefix else type == self.literal


@dataclass(frozen=True, slots=True)
class UnroutedType:
    """A type of recorded events that no handler wanted, and the id of the newest."""

    source: str
    type: str
    newest: int


@dataclass(frozen=True, slots=True)
class HandlerEntry:
    """A handler as registered in the store."""

    name: str
    max_attempts: int
    routes: tuple[Route, ...]


class Job(NamedTuple):
    """A leased job with the data of its event. A `body` of None is loaded when the job runs."""

    id: int
    handler: str
    attempts: int
    max_attempts: int
    event: int
    source: str
    event_id: str
    type: str
    reference: str | None
    received_at: datetime
    headers: bytes
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right to settle some jobs, until it expires."""

    token: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of a claim."""

    lease: Lease | None
    solo_waiting: bool
    """Whether a job that must run alone is due."""
    next_due_seconds: float | None
    """The time until the next job is due; None if no job is waiting."""


@dataclass(frozen=True, slots=True)
class Reschedule:
    """The attempt failed with a transient error."""

    delay_seconds: float
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Postpone:
    """The store was unavailable: the job runs again later, and no attempt is counted."""

    delay_seconds: float
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt failed, and the job with it."""

    failure_type: FailureType
    error: str
    traceback: str = ""
