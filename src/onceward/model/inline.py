"""Events whose handlers run within the request: what the ledger has of them, and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from onceward.model.admin import Pause
from onceward.model.events import Receipt
from onceward.model.jobs import FailureType, JobStatus

BUSY: Final = "Another delivery of this event is being processed. Retry later."
"""The message for a sender whose event another request processes."""


OPEN: Final = frozenset({JobStatus.QUEUED, JobStatus.FAILED})
"""The states in which a job has not ended for good. One in progress is queued."""


class InlineStatus(StrEnum):
    """The result for one event of a request to an inline source."""

    PROCESSED = "processed"
    """Its handlers ran in this request, no other job of it is open, and all is committed."""
    ALREADY_PROCESSED = "already_processed"
    """Its handlers ran before, and their writes are committed."""
    IGNORED = "ignored"
    """No handler wants it, or an operator cancelled or dismissed it."""
    ACCEPTED = "accepted"
    """It is durable. A worker or an operator has the rest."""


class LedgerJob(msgspec.Struct, frozen=True):
    """A job of a recorded event. A job in progress is still queued."""

    id: int
    handler: str
    status: JobStatus
    failure_type: str | None
    attempts: int
    max_attempts: int

    @property
    def is_open(self) -> bool:
        """Whether the job waits for a worker or for an operator, or is in progress."""
        return self.status in OPEN

    @property
    def has_failed_inline(self) -> bool:
        """Whether the job failed within a request: the next delivery of the event runs it again."""
        return self.status is JobStatus.FAILED and self.failure_type == FailureType.INLINE


class LedgerEvent(msgspec.Struct, frozen=True):
    """A recorded event and its jobs."""

    id: int
    body_sha256: bytes
    received_at: datetime
    jobs: tuple[LedgerJob, ...]
    final_state: str | None = None
    """The state of those of its jobs that were purged, or of an event that had none."""


class LedgerView(msgspec.Struct, frozen=True):
    """The rows of the events of one request, as the ledger has them."""

    events: Sequence[LedgerEvent | None]
    """The event of each delivery, or None if it is new."""
    held: frozenset[int]
    """The positions of new events that will be held, because their body came under another id."""
    pauses: Sequence[Pause]
    wanted: Mapping[int, frozenset[str]] = msgspec.field(default_factory=dict)
    """The handlers that will get a job for the new event at a position, if filters are in use."""


class InlineRun(msgspec.Struct, frozen=True):
    """A handler that ran for the event of a delivery.

    A job that does not exist yet has a provisional id, which is negative.
    """

    position: int
    """The position of the delivery in its request."""
    handler: str
    job: int
    filtered: str | None = None
    """Why the handler did not run: its filter does not want the event."""

    @property
    def is_new(self) -> bool:
        """Whether the event was not recorded when the handler started."""
        return self.job < 0


class InlineSettlement(msgspec.Struct, frozen=True):
    """The deliveries of a request as they are recorded once its transaction commits."""

    receipts: list[Receipt]
    unfinished: frozenset[int] = frozenset()
    """The positions of deliveries whose event has another job that is queued or failed."""
    has_queued_jobs: bool = False
    """Whether one of these other jobs is queued, for a worker."""


class InlineFailure(msgspec.Struct, frozen=True):
    """Why a run was rolled back: its own error, or that of another handler of the request."""

    run: InlineRun
    error: str
    traceback: str
    elapsed_seconds: float


class InlineResult(msgspec.Struct, frozen=True):
    """The result for one event of a request."""

    event_id: str
    status: InlineStatus
    receipt: Receipt
