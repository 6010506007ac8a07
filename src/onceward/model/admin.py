"""Values of the admin side: list items, queries, operator actions and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec

from onceward.errors import RejectionCause
from onceward.model.effects import EffectStatus
from onceward.model.events import Outcome, ProcessingState, Receipt, SourceMode
from onceward.model.jobs import FailureType, JobStatus, OnHeadFailed

MAX_WAITING_COUNTED: Final = 1000
"""The number up to which the jobs that wait behind a job are counted."""


class EventItem(msgspec.Struct, frozen=True):
    """One entry of the list of events."""

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
    """An earlier event with the same body, if the source checks for duplicate bodies."""
    type_wanted: bool
    """Whether a handler wanted its type when it was recorded. A filter may have rejected it."""


class WaitReason(StrEnum):
    """Why a queued job would not run even if its time had come."""

    KEY = "key"
    PAUSED_HANDLER = "paused_handler"
    PAUSED_SOURCE = "paused_source"


class Pausable(StrEnum):
    """The kinds of things that an operator may pause."""

    HANDLER = "handler"
    SOURCE = "source"


class Pause(msgspec.Struct, frozen=True):
    """A handler or source that an operator paused."""

    kind: Pausable
    name: str
    paused_at: datetime


class JobItem(msgspec.Struct, frozen=True):
    """One entry of the list of jobs."""

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
    ordering_key: str | None
    even_if_stale: bool
    """Whether an operator wants it to run even if its key has applied a newer version."""
    effect_id: str | None
    """The effect whose outcome an operator must find out before the job can go on."""
    waiting: WaitReason | None
    waits_for: str | None
    """The job of the same handler and ordering key that must end first."""


class AttemptItem(msgspec.Struct, frozen=True):
    """A failed attempt of a job."""

    number: int
    worker: str
    started_at: datetime
    ended_at: datetime
    error: str
    traceback: str
    """One frame a line, in calling order, without values. Empty if the handler never ran."""


class JobDetail(JobItem, frozen=True):
    """A job with its newest failed attempts, newest first."""

    failed_attempts: tuple[AttemptItem, ...]
    waiting_behind: int
    """The queued jobs of the same handler and ordering key that come later."""


class RouteItem(msgspec.Struct, frozen=True):
    """One pattern of a handler, as the ledger has it: of both versions during a deploy."""

    pattern: str
    source: str | None
    """The only source; None for every source."""
    when: str | None
    """The filter, as the text of a JSON object of paths and lists of values; None without one."""


class HandlerItem(msgspec.Struct, frozen=True):
    """One entry of the list of handlers."""

    id: str
    name: str
    paused_at: datetime | None
    ordering_key: str | None
    on_head_failed: OnHeadFailed
    concurrency: int | None
    rate: str | None
    max_attempts: int
    routes: tuple[RouteItem, ...]
    forwards_to: str | None = None
    """The URL without its query, if this process defines the handler as a forward."""


class SourceItem(msgspec.Struct, frozen=True):
    """One entry of the list of sources."""

    id: str
    name: str
    paused_at: datetime | None
    mode: SourceMode | None = None
    """Where its handlers run; None if this process does not define the source."""


class WatermarkItem(msgspec.Struct, frozen=True):
    """One entry of the list of watermarks: the newest version that a handler applied for a key."""

    id: str
    handler: str
    key: str
    """The value of the version key; its hash if it is longer than 255 bytes."""
    version: str
    version_kind: Literal["number", "text"]
    event_id: str
    source: str
    applied_at: datetime | None
    """When the version was applied; None if an earlier version of Onceward did it."""


class EffectItem(msgspec.Struct, frozen=True):
    """One entry of the list of effects."""

    id: str
    idempotency_key: str
    job_id: str
    reference: str | None
    status: EffectStatus
    function: str | None
    """The function of an outside call; None for a mark of `effects.once`."""
    call_no: int
    """The number of the last outside call."""
    deadline_at: datetime | None
    """The time until which the last outside call may be under way."""
    error_message: str | None
    created_at: datetime
    updated_at: datetime


class DeliveryItem(msgspec.Struct, frozen=True):
    """One entry of the list of deliveries: the first of an event, or a redelivery."""

    id: str
    event_ledger_id: str
    source: str
    event_id: str
    outcome: Outcome
    received_at: datetime
    accepted_as: str | None
    """The event that an operator recorded from a conflict."""


class RejectionItem(msgspec.Struct, frozen=True):
    """One entry of the list of rejections: `count` requests that failed for the same reason."""

    id: str
    source: str
    cause: RejectionCause
    check: str
    count: int
    received_at: datetime
    last_at: datetime
    kept: bool
    """Whether the request itself is stored, and can be verified again."""
    received_as: str | None
    """The event that was recorded when the request was verified again."""


class RejectionCount(msgspec.Struct, frozen=True):
    """The number of requests of a source that failed for one cause, over all time."""

    source: str
    cause: RejectionCause
    count: int
    first_at: datetime | None
    last_at: datetime | None


class AuditItem(msgspec.Struct, frozen=True):
    """One entry of the audit trail: who did what to which subject, when and why."""

    id: str
    job_id: str | None
    subject: str
    action: str
    actor: str
    authenticated_as: str
    reason: str
    created_at: datetime


class PageQuery(msgspec.Struct, frozen=True):
    """A page of a list, newest first.

    `after` is the id of the last item on the previous page; the other fields filter.
    """

    limit: int
    after: int | None = None
    status: str | None = None
    source: str | None = None
    handler: str | None = None
    event_id: str | None = None
    reference: str | None = None
    ordering_key: str | None = None
    subject: str | None = None
    effect_id: int | None = None
    key: str | None = None
    failure_type: str | None = None
    duplicate_body: bool = False


class OperatorAction(msgspec.Struct, frozen=True):
    """An operator's action: the actor, the authenticated identity and the reason."""

    actor: str
    authenticated_as: str
    reason: str


class Requeued(msgspec.Struct, frozen=True):
    """The result of a requeue."""

    job: str
    available_at: datetime
    audit: AuditItem
    note: str | None = None
    """A warning that no worker runs the handler of the job; None if one does."""


class Cancelled(msgspec.Struct, frozen=True):
    """The result of a cancellation."""

    job: str
    finished_at: datetime
    audit: AuditItem


class RoutedEvent(msgspec.Struct, frozen=True):
    """The job that an operator created for an event and a handler."""

    event: str
    job: str
    available_at: datetime
    audit: AuditItem
    note: str | None = None
    """A warning that no worker runs the handler of the job; None if one does."""


class Dismissed(msgspec.Struct, frozen=True):
    """The result of ending the review of an event as ignored."""

    event: str
    processed_at: datetime
    audit: AuditItem


class ResolvedEffect(msgspec.Struct, frozen=True):
    """The result of a person's answer about an effect."""

    effect: str
    status: EffectStatus
    requeued: tuple[str, ...]
    """The jobs that waited for the answer, and are queued again."""
    audit: AuditItem


class ForgottenWatermark(msgspec.Struct, frozen=True):
    """The watermark that an operator deleted, and the audit entry."""

    watermark: WatermarkItem
    audit: AuditItem


class PauseChange(msgspec.Struct, frozen=True):
    """The result of a pause, or of a resume: then `paused_at` is None."""

    name: str
    paused_at: datetime | None
    audit: AuditItem
    note: str | None = None
    """A warning that senders get 503, if the pause affects an inline source; else None."""


class Rejection(msgspec.Struct, frozen=True):
    """Requests that failed verification for the same reason, to be stored as one rejection.

    `request` and `body` are set if the request itself is stored, to be verified again.
    """

    source: str
    cause: RejectionCause
    check: str
    received_at: float
    last_at: float
    count: int = 1
    request: bytes | None = None
    body: bytes | None = None


class StoredRejection(msgspec.Struct, frozen=True):
    """A rejection as stored.

    `request` and `body` are None if the request was not stored, or has been verified since.
    """

    source: str
    received_at: datetime
    request: bytes | None
    body: bytes | None
    received_as: str | None


class StoredDelivery(msgspec.Struct, frozen=True):
    """A redelivery as stored, with the fields of its event that a new event would need."""

    outcome: Outcome
    accepted_as: str | None
    source: str
    event_id: str
    type: str
    reference: str | None
    body_sha256: bytes
    headers: bytes | None
    body: bytes | None


class ManualRecording(msgspec.Struct, frozen=True):
    """The events that an operator action recorded, and its audit entry."""

    events: tuple[Receipt, ...]
    audit: AuditItem


@dataclass(frozen=True, slots=True)
class ProvisionedSecret:
    """A secret that a provider provisioned in a challenge."""

    source: str
    secret: bytes = field(repr=False)
    provisioned_at: datetime
