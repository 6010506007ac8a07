"""Jobs: their states, their leases, and how an attempt ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, NamedTuple

import msgspec


class JobStatus(StrEnum):
    """The state of a job. `in_progress` is a queued job under a lease."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    FAILED = "failed"
    IGNORED = "ignored"
    CANCELLED = "cancelled"


class FailureType(StrEnum):
    """Why a job failed or was ignored."""

    PERMANENT = "permanent"
    EXHAUSTED = "exhausted"
    HELD = "held"
    """The job never ran: an operator must requeue it first."""
    UNKNOWN_OUTCOME = "unknown_outcome"
    """Nobody knows whether an outside call was applied: an operator must find out."""
    STALE = "stale"
    """The job was ignored: its key has applied a newer version."""
    INLINE = "inline"
    """The job failed within the request: the next delivery of the event runs it again."""
    FILTERED = "filtered"
    """The job was ignored: the filter of its handler does not want the event."""


WORKER_DIED: Final = "The worker died while it ran this job alone"
DIED_IN_ON_FAILED: Final = (
    f"{WORKER_DIED}, and another one while it ran on_failed, of which nothing was committed"
)

TRANSITIONS: Final = frozenset(
    {
        (JobStatus.QUEUED, JobStatus.IN_PROGRESS),
        (JobStatus.IN_PROGRESS, JobStatus.DONE),
        (JobStatus.IN_PROGRESS, JobStatus.QUEUED),
        (JobStatus.IN_PROGRESS, JobStatus.FAILED),
        (JobStatus.IN_PROGRESS, JobStatus.IGNORED),
        (JobStatus.FAILED, JobStatus.QUEUED),
        (JobStatus.CANCELLED, JobStatus.QUEUED),
        (JobStatus.IGNORED, JobStatus.QUEUED),
        (JobStatus.QUEUED, JobStatus.CANCELLED),
        (JobStatus.IN_PROGRESS, JobStatus.CANCELLED),
        (JobStatus.FAILED, JobStatus.CANCELLED),
        (JobStatus.IGNORED, JobStatus.CANCELLED),
    }
)
"""Every legal transition of a job that workers run. An operator requeues or cancels it.

Within the request of an inline source, a job that failed there may also be done or ignored.
"""

CANCELLABLE: Final = frozenset(start for start, end in TRANSITIONS if end is JobStatus.CANCELLED)
"""The states from which an operator may cancel a job."""

REQUEUEABLE: Final = frozenset(start for start, end in TRANSITIONS if end is JobStatus.QUEUED) - {
    JobStatus.IN_PROGRESS
}
"""The states from which an operator may requeue a job."""


class Route(msgspec.Struct, frozen=True):
    """The event types a handler subscribes to. A `source` of None means any source."""

    pattern: str
    source: str | None = None
    filter: str = ""
    """The values that the payload must have, as canonical JSON; empty if every payload matches."""

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern ends in ``*`` and so matches a prefix."""
        return self.pattern.endswith("*")

    @property
    def literal(self) -> str:
        """The part of the pattern that is matched literally."""
        return self.pattern.removesuffix("*")

    def matches(self, source: str, type: str) -> bool:
        """Return whether the route is for events of this source and type, filtered or not."""
        if self.source not in (None, source):
            return False
        return type.startswith(self.literal) if self.is_prefix else type == self.literal


class UnroutedType(msgspec.Struct, frozen=True):
    """A type of recorded events that no handler wanted, and the id of the newest."""

    source: str
    type: str
    newest: int


OnHeadFailed = Literal["hold", "continue"]
"""Whether a job that failed for good holds up the later jobs of its key."""


class QueueRules(msgspec.Struct, frozen=True):
    """The order and the limits of a handler's jobs, over all processes."""

    ordering_key: str | None = None
    """A path into the payload. Jobs with the same value run one at a time, in order of arrival."""
    holds_key: bool = True
    """Whether `OnHeadFailed` is ``hold``."""
    concurrency: int | None = None
    """The number of jobs that may be leased at once."""
    rate_interval_seconds: float | None = None
    """The time between two jobs, on average."""


class HandlerEntry(msgspec.Struct, frozen=True):
    """A handler as registered in the store."""

    name: str
    max_attempts: int
    routes: tuple[Route, ...]
    rules: QueueRules = QueueRules()
    has_on_failed: bool = False
    """Whether a function of the handler runs when a job fails for good."""


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
    ordering_key: str | None = None
    even_if_stale: bool = False
    """Whether an operator wants it to run even if its key has applied a newer version."""
    even_if_stale_at: datetime | None = None
    """When the operator said so. A version that was applied later is not overridden."""
    gives_up: bool = False
    """Whether the worker of its last attempt died: it only has to be ended, with `on_failed`."""


class Lease(msgspec.Struct, frozen=True):
    """The exclusive right to settle some jobs, until it expires."""

    token: str
    jobs: tuple[Job, ...]


class Renewal(msgspec.Struct, frozen=True):
    """The leases that a worker still holds, and those of its jobs that an operator cancelled."""

    held: frozenset[str]
    cancelled: frozenset[int] = frozenset()


class ClaimRequest(msgspec.Struct, frozen=True):
    """The jobs that a worker wants to lease, and the news that it has for the queue."""

    token: str
    """Chosen by the worker, so that it can end a lease whose response was lost."""
    worker: str
    wanted: Mapping[str, int]
    """The number of jobs wanted of each handler."""
    limit: int
    """The number of jobs wanted of all handlers together."""
    solo: bool
    """Whether to lease at most one job that must run alone, or none of those."""
    slots: int
    """The number of jobs of one handler that the worker runs at once."""
    lease_seconds: float
    owner: int = 0
    """The number that stands for the worker in `Queue.presence`."""
    ended: Sequence[str] = ()
    """Leases whose jobs are all settled."""
    settled: Sequence[int] = ()
    """Jobs with an ordering key that were settled: the next of their keys may run."""
    looks_for_lost: bool = True
    """Whether to reclaim the jobs of leases that expired or whose worker died."""


class Claim(msgspec.Struct, frozen=True):
    """The result of a claim."""

    lease: Lease | None
    solo_waiting: bool
    """Whether a job that must run alone is due."""
    next_due_seconds: float | None
    """The time until the next claim may find a job or a dead worker; None if it will not."""


class Reschedule(msgspec.Struct, frozen=True):
    """The attempt failed with a transient error."""

    delay_seconds: float
    error: str
    traceback: str = ""


class Postpone(msgspec.Struct, frozen=True):
    """The job could not run: it runs again later, and no attempt is counted."""

    delay_seconds: float
    error: str
    traceback: str = ""
    is_outage: bool = True
    """Whether the store was unavailable. Else an outside call or another worker is awaited."""


class Fail(msgspec.Struct, frozen=True):
    """The attempt failed, and the job with it."""

    failure_type: FailureType
    error: str
    traceback: str = ""
    effect: int | None = None
    """The effect whose outcome an operator must find out."""
    counts_attempt: bool = True
    """Whether to count this attempt. If its worker died, a claim has counted it."""


class Ignore(msgspec.Struct, frozen=True):
    """The event is not applied: its key has applied a newer version, or a filter rejects it."""

    error: str
    traceback: str = ""
    failure_type: FailureType = FailureType.STALE
