"""Jobs: their states, their leases, and how an attempt ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple


class JobStatus(StrEnum):
    """Where a job stands. `in_progress` is a queued job under a lease."""

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
    """It never ran: a person is to look at its event first."""


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
"""Every move a job can make. The last two are an operator's requeue."""

REQUEUEABLE: Final = frozenset(start for start, end in TRANSITIONS if end is JobStatus.QUEUED) - {
    JobStatus.IN_PROGRESS
}
"""The states from which a person may requeue a job."""


@dataclass(frozen=True, slots=True)
class Route:
    """Which events a handler wants. `source` None means any."""

    pattern: str
    source: str | None = None

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern ends in ``*``."""
        return self.pattern.endswith("*")

    @property
    def text(self) -> str:
        """The pattern without its ``*``."""
        return self.pattern.removesuffix("*")


@dataclass(frozen=True, slots=True)
class HandlerEntry:
    """A handler as the store knows it."""

    name: str
    max_attempts: int
    routes: tuple[Route, ...]


class Job(NamedTuple):
    """A leased job with all that its handler needs. `body` is None where it is loaded later."""

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
    """The right to settle some jobs."""

    token: str
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a worker gets when it asks for work."""

    lease: Lease | None
    solo_waiting: bool
    """A job that must run alone is due."""
    next_due_seconds: float | None
    """When nothing is due: how long until something is."""


@dataclass(frozen=True, slots=True)
class Done:
    """The attempt did its work."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed in a way that may pass."""

    delay_seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class Postpone:
    """The store could not be used: no fault of the job, so nothing is counted."""

    delay_seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt failed for good."""

    failure_type: FailureType
    error: str
