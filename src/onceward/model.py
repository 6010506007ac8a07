"""The words of Onceward as values: what is received, recorded, leased, settled and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from onceward.errors import Step

ID_LIMIT_BYTES: Final = 255
"""How long an event id, a type, a reference or an idempotency key may be, in UTF-8."""

INGEST_SOURCE: Final = "ingest"
"""The source of what comes in through ``POST /events/ingest``."""

P = TypeVar("P")


class Outcome(StrEnum):
    """What a delivery turned out to be."""

    RECORDED = "recorded"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


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


class ProcessingState(StrEnum):
    """Where an event stands: follows from its jobs."""

    PENDING = "pending"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    IGNORED = "ignored"


class EffectStatus(StrEnum):
    """Where an effect stands."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


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


def text_fault(text: str) -> str | None:
    """Say why a text cannot be an id, a type, a reference or a key; None when it can."""
    if not text:
        return "is empty"
    if "\0" in text:
        return "contains a NUL"
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if length > ID_LIMIT_BYTES:
        return f"is {length} bytes long; the limit is {ID_LIMIT_BYTES}"
    return None


class Identity(NamedTuple):
    """What a delivery is about."""

    event_id: str
    type: str
    reference: str | None = None


class Twins(IntEnum):
    """What is done with an event that has the body of another, under an id of its own."""

    ALLOWED = 0
    FLAGGED = 1
    HELD = 2


class Arrival(NamedTuple):
    """A verified, identified delivery on its way to the ledger.

    `body_sha256` is that of the body without what its sender changes from delivery to delivery.
    """

    source: str
    event_id: str
    type: str
    reference: str | None
    body_sha256: bytes
    headers: bytes
    body: bytes
    twins: Twins = Twins.ALLOWED


class Receipt(NamedTuple):
    """What the ledger says of a delivery after its commit. `event` is the ledger's own id."""

    event: int
    outcome: Outcome


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


Settlement = Done | Retry | Postpone | Fail


@dataclass(frozen=True)
class Event(Generic[P]):
    """What a handler gets. `payload` is decoded when first asked for."""

    id: str
    source: str
    type: str
    reference: str | None
    received_at: datetime
    body: bytes
    headers: Mapping[str, str]
    _decode: Callable[[], Any] = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """The event's identity over all sources: ``source:id``."""
        return f"{self.source}:{self.id}"

    @property
    def payload(self) -> P:
        """The decoded body. Raises MalformedPayload where it cannot be decoded."""
        decoded: P
        try:
            decoded = self.__dict__["_payload"]
        except KeyError:
            decoded = self._decode()
            self.__dict__["_payload"] = decoded
        return decoded


@dataclass(frozen=True, slots=True)
class EventItem:
    """An event as operators see it."""

    id: str
    source: str
    event_id: str
    event_type: str
    related_reference: str | None
    received_at: datetime
    processed_at: datetime | None
    processing_state: ProcessingState
    deliveries: int
    conflicts: int
    same_body_as: str | None
    """The event that came before with the same body, where its source looks for such."""


@dataclass(frozen=True, slots=True)
class JobItem:
    """A job as operators see it."""

    id: str
    status: JobStatus
    event_ledger_id: str
    source: str
    event_type: str
    external_event_id: str
    handler: str
    attempts: int
    max_attempts: int
    failure_type: FailureType | None
    last_error: str | None
    available_at: datetime
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class EffectItem:
    """An effect as operators see it."""

    id: str
    idempotency_key: str
    job_id: str
    reference: str | None
    status: EffectStatus
    error_message: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class DeliveryItem:
    """A delivery as operators see it: the first of an event, or one that came again."""

    id: str
    event_ledger_id: str
    source: str
    event_id: str
    outcome: Outcome
    received_at: datetime
    accepted_as: str | None
    """The event that a person made of a conflict."""


@dataclass(frozen=True, slots=True)
class RejectionItem:
    """A request that did not verify, or several alike, as operators see it."""

    id: str
    source: str
    step: Step
    check: str
    count: int
    received_at: datetime
    last_at: datetime
    kept: bool
    """Whether it can be verified again."""
    received_as: str | None
    """The event that it became when it was."""


@dataclass(frozen=True, slots=True)
class RejectionCount:
    """How many requests of a source failed a check, since the ledger was made."""

    source: str
    step: Step
    count: int


@dataclass(frozen=True, slots=True)
class AuditItem:
    """What an operator did, to what, who, why, when."""

    id: str
    job_id: str | None
    subject: str
    action: str
    actor: str
    authenticated_as: str
    reason: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which part of a list is wanted: newest first, before `after`."""

    limit: int
    after: int | None = None
    status: str | None = None
    event_id: str | None = None
    reference: str | None = None
    same_body: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """An operator's act: who says so, who was authenticated, and why."""

    actor: str
    authenticated_as: str
    reason: str


@dataclass(frozen=True, slots=True)
class Requeued:
    """What a requeue left behind."""

    job: str
    available_at: datetime
    audit: AuditItem


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that did not verify, or several alike, on the way to where they are listed.

    `request` and `body` are what is kept of it, to verify it again.
    """

    source: str
    step: Step
    check: str
    received_at: float
    last_at: float
    count: int = 1
    request: bytes | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeptRejection:
    """A request that did not verify, with what is kept of it."""

    source: str
    received_at: datetime
    request: bytes | None
    body: bytes | None
    received_as: str | None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A delivery that may be in conflict with its event, and the event's own facts."""

    outcome: Outcome
    accepted_as: str | None
    source: str
    event_id: str
    type: str
    reference: str | None
    body_sha256: bytes
    headers: bytes | None
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Taken:
    """What a person had recorded, and the audit entry of it."""

    events: tuple[Receipt, ...]
    audit: AuditItem


@dataclass(frozen=True, slots=True)
class LearnedSecret:
    """A secret that a sender handed over."""

    source: str
    secret: bytes = field(repr=False)
    learned_at: datetime
