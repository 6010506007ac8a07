"""The Protocols between the flow and a store. One conformance suite runs on both stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import Flag, IntEnum, auto
from typing import Any, NoReturn, Protocol

from onceward.errors import TransactionIdleTimeout
from onceward.model.admin import (
    AuditItem,
    Cancelled,
    DeliveryItem,
    Dismissed,
    EffectItem,
    EventItem,
    ForgottenWatermark,
    HandlerItem,
    JobDetail,
    JobItem,
    ManualRecording,
    OperatorAction,
    PageQuery,
    Pausable,
    PauseChange,
    ProvisionedSecret,
    Rejection,
    RejectionCount,
    RejectionItem,
    Requeued,
    ResolvedEffect,
    RoutedEvent,
    SourceItem,
    StoredDelivery,
    StoredRejection,
    WatermarkItem,
)
from onceward.model.effects import Resolution
from onceward.model.events import Arrival, Receipt
from onceward.model.inline import InlineFailure, InlineRun, InlineSettlement, LedgerView
from onceward.model.jobs import (
    Claim,
    ClaimRequest,
    Fail,
    HandlerEntry,
    Ignore,
    Job,
    JobStatus,
    Postpone,
    Renewal,
    Reschedule,
)
from onceward.model.versions import Watermark
from onceward.ports.archive import ArchiveStore
from onceward.ports.effect_calls import EffectCalls
from onceward.ports.maintenance import MaintenanceStore
from onceward.ports.watching import Pauses, UnroutedEvents, WorkerRegistry
from onceward.runtime.sql_text import Sql

Row = dict[str, Any]


class Duty(Flag):
    """The duties of a serving process. Each needs privileges of its own."""

    RECEIVE = auto()
    """Record events, and serve the admin API."""
    WORK = auto()
    """Run handlers."""


EVERY_DUTY = Duty.RECEIVE | Duty.WORK


class BatchGroup(IntEnum):
    """Deliveries of one group are best written in one batch, apart from the other group.

    A request with several events takes the lowest of their groups.
    """

    NEW = 0
    DUPLICATES = 1
    """Deliveries that probably repeat a recorded event."""


class Ledger(Protocol):
    """Records deliveries."""

    max_writers: int
    """Batches that may be written concurrently."""

    def batch_group(self, arrival: Arrival) -> BatchGroup:
        """Return the group in which a delivery is best written."""

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Record deliveries durably, each event once; return a receipt for each, in order.

        Raise Unwritable if the database refuses one of them, and another StoreError if it cannot
        be used. Then none of them is known to be recorded.
        """

    async def ready(self) -> None:
        """Raise StoreError unless events can be recorded now."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a statement returned, and the number of rows that it touched."""

    rows: list[Row]
    count: int


class StoreTransaction(Protocol):
    """A handler's transaction, from its first statement to its end."""

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of the handler."""

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. Return True for the first job with this key, over all events."""

    async def lock_watermark(self, handler: str, key: str, new: Watermark) -> Watermark:
        """Return the watermark of a handler's key, which no other transaction can change now.

        Write `new` and return it if there is none.
        """

    async def set_watermark(self, handler: str, key: str, new: Watermark) -> None:
        """Replace a locked watermark."""

    async def commit_done(self, leases: Mapping[str, Sequence[int]]) -> None:
        """Mark the jobs as done, each under the token of its lease, and commit.

        Raise LeaseLost, NotSettled, TransactionMisuse if a handler has ended the transaction, or
        OutcomeUnknown if the connection or the disk fails meanwhile.
        """

    async def settle_failed(
        self, token: str, job: int, failure: Fail, elapsed_seconds: float
    ) -> bool:
        """Mark a job as failed. Return False if its lease was lost, or it need not fail after all.

        Raise TransactionMisuse if a handler has ended the transaction.
        """

    async def commit(self) -> None:
        """Commit. Raise OutcomeUnknown if the connection or the disk fails meanwhile."""


OnIdleTimeout = Callable[[TransactionIdleTimeout], object]
ErrorSettlement = Reschedule | Postpone | Fail | Ignore
"""How an attempt ends that is not done."""


def ignore_idle_timeout(_: TransactionIdleTimeout) -> None:
    """Leave the error to the next statement."""


class Queue(Protocol):
    """The jobs that workers claim and settle."""

    max_shared_transactions: int
    """Shared transactions that a process may have open concurrently."""

    async def claim(self, request: ClaimRequest) -> Claim:
        """Lease due jobs. End the leases that are over first, and reclaim lost ones if asked to."""

    async def end_leases(self, tokens: Sequence[str], settled: Sequence[int] = ()) -> None:
        """Delete leases whose jobs are all settled, and wake the next jobs of the settled keys."""

    async def load_body(self, job: Job) -> bytes:
        """Return the body of a job's event. Raise PermanentError if it is no longer stored."""

    async def was_routed(self, job: int) -> bool:
        """Return whether a person routed the event of a job to its handler."""

    async def filters_for(self, job: Job) -> list[str]:
        """Return the filters of the routes by which the handler of a job gets its event.

        Several versions of a handler have a route each. A route without a filter has an empty one.
        """

    async def renew(
        self,
        tokens: Sequence[str],
        lease_seconds: float,
        *,
        owner: int = 0,
        unfinished: Sequence[int] = (),
    ) -> Renewal:
        """Extend leases. Return those still held, and the `unfinished` jobs that were cancelled."""

    async def release(self, token: str, jobs: Sequence[int]) -> None:
        """Release jobs that were not started."""

    async def watermark(self, handler: str, key: str) -> Watermark | None:
        """Return the watermark of a handler's key; None if it has applied no version."""

    async def settle_error(
        self, token: str, job: int, settlement: ErrorSettlement, elapsed_seconds: float
    ) -> bool:
        """Settle an attempt that is not done. Return False if the lease was lost."""

    async def settle_done(self, token: str, *jobs: int) -> bool:
        """Settle attempts that wrote nothing. Return False if the lease was lost.

        Raise NotSettled.
        """

    def begin(
        self,
        location: Callable[[], str],
        on_idle_timeout: OnIdleTimeout = ignore_idle_timeout,
        *,
        shared: bool = False,
    ) -> AbstractAsyncContextManager[StoreTransaction]:
        """Open a transaction for a handler; roll it back at the end unless it is committed.

        `location` returns the position of the handler, for the error if it blocks other writers.
        `on_idle_timeout` is called with that error as soon as the transaction is rolled back.
        A transaction `shared` by several jobs does not wait for locks, and raises
        NeedsOwnTransaction for a statement whose effects reach beyond its job.
        """

    def announcements(self) -> AsyncGenerator[None, None]:
        """Yield whenever jobs may have become due, in whichever process they were created."""

    async def wake_parked(self) -> None:
        """Wake parked jobs that need not wait any longer: a safety net for lost wake-ups."""

    def presence(self) -> AsyncGenerator[int, None]:
        """Show that the worker is alive, for as long as the generator runs.

        Yield the number of the worker whenever its leases are known to end with it, and 0 while
        they only expire.
        """


class InlineTransaction(StoreTransaction, Protocol):
    """The transaction of handlers that run within the request."""

    async def settle_inline(
        self, arrivals: Sequence[Arrival], runs: Sequence[InlineRun]
    ) -> InlineSettlement:
        """Record the deliveries of a request and mark the jobs of its handlers as done.

        Raise EventChanged if the events are no longer as they were when the handlers started, and
        NotSettled, or TransactionMisuse if a handler has ended the transaction.
        """


@dataclass(frozen=True, slots=True)
class LockedEvents:
    """The events of one request, which no other request processes meanwhile."""

    view: LedgerView
    """Their rows, read under the locks."""
    now: datetime
    """The time at which those that are new are received."""
    begin: Callable[
        [Callable[[], str], OnIdleTimeout], AbstractAsyncContextManager[InlineTransaction]
    ]
    """Opens the transaction of the handlers, as `Queue.begin` does."""
    is_lost: Callable[[], bool] = lambda: False
    """Returns whether the database has ended the transaction while a handler ran."""


class InlineLedger(Protocol):
    """Records events together with the writes of their handlers."""

    def lock_events(self, arrivals: Sequence[Arrival]) -> AbstractAsyncContextManager[LockedEvents]:
        """Lock the events of a request. Raise EventBusy if another process has one of them.

        The caller excludes the other requests of its own process.
        """

    async def look(self, arrivals: Sequence[Arrival]) -> LedgerView:
        """Return what the ledger has of the events of some deliveries, without a lock."""

    async def fail_inline(
        self, arrivals: Sequence[Arrival], failures: Sequence[InlineFailure], worker: str
    ) -> dict[InlineRun, tuple[int, int]]:
        """Record deliveries whose handlers failed, in a transaction of its own.

        Never change the status of a job that exists already. Return the job and the number of the
        attempt for each run that was counted.
        """


class AdminStore(Protocol):
    """The lists and actions of operators."""

    async def events(self, query: PageQuery) -> list[EventItem]:
        """Return a page of events, newest first."""

    async def jobs(self, query: PageQuery) -> list[JobItem]:
        """Return a page of jobs, newest first."""

    async def job(self, id: int, *, attempts: int) -> JobDetail | None:
        """Return a job with its newest failed attempts, or None if the id is unknown."""

    async def effects(self, query: PageQuery) -> list[EffectItem]:
        """Return a page of effects, newest first."""

    async def deliveries(self, query: PageQuery) -> list[DeliveryItem]:
        """Return a page of deliveries, newest first."""

    async def audit(self, query: PageQuery) -> list[AuditItem]:
        """Return a page of audit entries, newest first."""

    async def rejections(self, query: PageQuery) -> list[RejectionItem]:
        """Return a page of rejected requests, newest first."""

    async def rejection_counts(self) -> list[RejectionCount]:
        """Return the number of rejected requests by source and cause."""

    async def rejection(self, id: int) -> StoredRejection | None:
        """Return a rejected request, or None if the id is unknown."""

    async def receive_rejection(
        self, id: int, arrivals: Sequence[Arrival], action: OperatorAction
    ) -> ManualRecording:
        """Record the events of a rejected request, with an audit entry.

        Raise NotInState if another operator was faster.
        """

    async def conflict(self, delivery: int) -> StoredDelivery | None:
        """Return a redelivery with the facts of its event, or None if the id is unknown."""

    async def accept_conflict(
        self, delivery: int, arrival: Arrival, action: OperatorAction
    ) -> ManualRecording:
        """Record a conflict as an event of its own, with an audit entry.

        Raise NotInState if another operator was faster.
        """

    async def requeue(
        self, job: int, action: OperatorAction, *, even_if_stale: bool = False
    ) -> Requeued | None:
        """Queue a job that failed, was ignored or was cancelled again, with an audit entry.

        With `even_if_stale`, it is applied even if its key has applied a newer version.
        Return None if the job is in another state. Raise NotInState if its payload is gone.
        """

    async def watermarks(self, query: PageQuery) -> list[WatermarkItem]:
        """Return a page of watermarks, newest first."""

    async def forget_watermark(
        self, handler: str, key: str, action: OperatorAction
    ) -> ForgottenWatermark | None:
        """Delete the watermark of a handler's key, with an audit entry. Return None without one."""

    async def cancel(self, job: int, action: OperatorAction) -> Cancelled | None:
        """Cancel a job that has not ended, with an audit entry; take it from its lease.

        Return None if the id is unknown. Raise NotInState if the job is done or cancelled.
        """

    async def route_event(
        self, event: int, handler: str, action: OperatorAction
    ) -> RoutedEvent | None:
        """Create the job of an event for a handler, with an audit entry.

        Return None if the event is unknown, and raise NotFound if the handler is. Raise NotInState
        if the handler has a job for the event, or may have applied it, or if the payload is gone.
        """

    async def dismiss(self, event: int, action: OperatorAction) -> Dismissed | None:
        """End the review of an event as ignored, with an audit entry.

        Return None if the event is unknown. Raise NotInState if it is not in review.
        """

    async def resolve_effect(
        self, effect: int, resolution: Resolution, action: OperatorAction
    ) -> ResolvedEffect | None:
        """Store a person's answer about an effect, with an audit entry.

        Queue the jobs that wait for it. Return None if the id is unknown. Raise NotInState.
        """

    async def handlers(self, query: PageQuery) -> list[HandlerItem]:
        """Return a page of handlers, newest first."""

    async def sources(self, query: PageQuery) -> list[SourceItem]:
        """Return a page of sources, newest first."""

    async def pause(self, kind: Pausable, name: str, action: OperatorAction) -> PauseChange | None:
        """Let the jobs of a handler or source wait, with an audit entry.

        Return None if the name is unknown. Raise NotInState if it is already paused.
        """

    async def resume(self, kind: Pausable, name: str, action: OperatorAction) -> PauseChange | None:
        """Let the jobs of a paused handler or source run again, with an audit entry.

        Return None if the name is unknown. Raise NotInState if it is not paused.
        """

    async def job_status(self, job: int) -> JobStatus | None:
        """Return the status of a job, or None if the id is unknown."""

    @property
    def warnings(self) -> Sequence[str]:
        """Return the reasons why writes fail now, for everyone to see."""


class RejectionStore(Protocol):
    """Stores rejected requests."""

    async def add_rejections(self, rejections: Sequence[Rejection], *, keep: int) -> None:
        """Store and count rejected requests.

        Keep `keep` of each source, beside the first and the last of each cause.
        """


class SecretStore(Protocol):
    """Stores secrets that providers provisioned."""

    async def store_secret(self, source: str, secret: bytes) -> None:
        """Store a provisioned secret, durably."""

    async def provisioned_secrets(self) -> list[ProvisionedSecret]:
        """Return all provisioned secrets, by source, newest first."""

    async def delete_secrets(self, source: str) -> int:
        """Delete the provisioned secrets of a source and return their number."""


class Registry(Protocol):
    """The sources, handlers, tables and tokens that processes register at start."""

    async def register(
        self, sources: Sequence[str], handlers: Sequence[HandlerEntry], retired: Sequence[str]
    ) -> list[str]:
        """Register sources, handlers and their routes; drop the routes of `retired` handlers.

        Return the names of all handlers that have routes, in whichever process they run.
        """

    def prepare(self) -> AbstractAsyncContextManager[StoreTransaction]:
        """Open a transaction for the app's own tables, in one process at a time."""

    async def tokens(self) -> dict[str, bytes]:
        """Return the SHA-256 of each admin token of this database, by name."""

    async def add_first_token(self, name: str, sha256: bytes) -> bool:
        """Store the first token. Return False if the database already has one."""


class Store(
    Ledger,
    Queue,
    EffectCalls,
    InlineLedger,
    AdminStore,
    RejectionStore,
    SecretStore,
    Registry,
    WorkerRegistry,
    Pauses,
    UnroutedEvents,
    MaintenanceStore,
    ArchiveStore,
    Protocol,
):
    """A whole store."""

    async def open(self, *, serving: bool, duties: Duty = EVERY_DUTY) -> None:
        """Connect and check the schema; if `serving`, check durability and migrate first.

        A serving process needs the privileges of its duties.
        Raise ConfigurationError, or StoreUnavailable if the database cannot be reached.
        """

    async def close(self) -> None:
        """Close all connections."""

    async def wait_until_lost(self) -> NoReturn:
        """Wait until the ledger is deleted or replaced under this process.

        Then raise LedgerReplaced: nothing can be saved before a restart.
        """

    async def migrate(self) -> list[str]:
        """Apply pending migrations and return their labels."""
