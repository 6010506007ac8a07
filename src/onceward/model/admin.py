"""What operators see and do: list items, queries, actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from onceward.errors import RejectionCause
from onceward.model.effects import EffectStatus
from onceward.model.events import Outcome, ProcessingState, Receipt
from onceward.model.jobs import FailureType, JobStatus


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
    duplicate_body_of: str | None
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
    cause: RejectionCause
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
    cause: RejectionCause
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
    duplicate_body: bool = False


@dataclass(frozen=True, slots=True)
class OperatorAction:
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
    cause: RejectionCause
    check: str
    received_at: float
    last_at: float
    count: int = 1
    request: bytes | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class StoredRejection:
    """A request that did not verify, with what is kept of it."""

    source: str
    received_at: datetime
    request: bytes | None
    body: bytes | None
    received_as: str | None


@dataclass(frozen=True, slots=True)
class StoredDelivery:
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
class ManualRecording:
    """What a person had recorded, and the audit entry of it."""

    events: tuple[Receipt, ...]
    audit: AuditItem


@dataclass(frozen=True, slots=True)
class ProvisionedSecret:
    """A secret that a sender handed over."""

    source: str
    secret: bytes = field(repr=False)
    provisioned_at: datetime
