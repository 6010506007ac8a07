"""The Protocols between the flow and a store. One conformance suite runs on both stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Flag, IntEnum, auto
from typing import Any, NoReturn, Protocol

from onceward.errors import TransactionIdleTimeout
from onceward.model.admin import (
    AuditItem,
    Cancelled,
    DeliveryItem,
    EffectItem,
    EventItem,
    HandlerItem,
    JobDetail,
    JobItem,
    ManualRecording,
    OperatorAction,
    PageQuery,
    Pausable,
    Pause,
    PauseChange,
    ProvisionedSecret,
    Rejection,
    RejectionCount,
    RejectionItem,
    Requeued,
    ResolvedEffect,
    SourceItem,
    StoredDelivery,
    StoredRejection,
)
from onceward.model.effects import CallIntent, EffectCall, EffectStatus, Resolution
from onceward.model.events import Arrival, Receipt
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
    UnroutedType,
)
from onceward.model.versions import Watermark
from onceward.model.workers import HEALTHY, LiveWorker, WorkerHealth
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


@dataclass(frozen=True, slots=True)
class PurgeProgress:
    """The number of events deleted, and the id to continue after; None at the end."""

    events: int
    next: int | None


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

    async def settle(self, token: str, *jobs: int) -> None:
        """Mark the jobs as done.

        Raise LeaseLost, NotSettled, or TransactionMisuse if a handler has ended the transaction.
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
        """Lease due jobs. End the leases that are over, and reclaim those of dead workers first."""

    async def end_leases(self, tokens: Sequence[str], settled: Sequence[int] = ()) -> None:
        """Delete leases whose jobs are all settled, and wake the next jobs of the settled keys."""

    async def load_body(self, job: Job) -> bytes:
        """Return the body of a job's event. Raise PermanentError if it is no longer stored."""

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


class EffectCalls(Protocol):
    """The outside calls of effects. Each statement commits by itself."""

    async def start_call(self, intent: CallIntent) -> EffectCall | None:
        """Commit the intent of a call: of a new effect, or of one that was not applied.

        Return None if the effect is in another state, or if the lease does not name the job.
        """

    async def restart_call(
        self, intent: CallIntent, call: EffectCall, *, window_seconds: float | None
    ) -> EffectCall | None:
        """Commit the intent of another call over one whose outcome was unknown.

        Without `window_seconds`, the earlier call is known not to have been applied. With them, the
        other side recognises the key for so long after the first call; the refusal of this call
        then says nothing about the earlier ones. Return None if the effect has changed, if the
        window is over, or if the lease does not name the job.
        """

    async def withdraw_call(self, intent: CallIntent) -> None:
        """Store that an intent whose commit was not confirmed was not sent."""

    async def load_call(self, intent: CallIntent) -> EffectCall:
        """Return the last call of an effect. Raise LeaseLost if the lease does not name the job."""

    async def record_success(
        self, call: EffectCall, result: str | None, error_message: str | None
    ) -> None:
        """Store that an effect was applied: the truth, over any status."""

    async def record_not_applied(self, call: EffectCall, error_message: str) -> EffectStatus:
        """Store that a call was not applied, if it is the last one. Return the effect's status."""

    async def record_unknown(self, call: EffectCall, error_message: str) -> None:
        """Store that the outcome of a call is unknown, if it is the last one and pending."""


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
        Return None if the job is in another state.
        """

    async def cancel(self, job: int, action: OperatorAction) -> Cancelled | None:
        """Cancel a job that has not ended, with an audit entry; take it from its lease.

        Return None if the id is unknown. Raise NotInState if the job is done or cancelled.
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


class WorkerRegistry(Protocol):
    """The workers that are alive, in any process."""

    async def renew_worker(
        self,
        worker: str,
        handlers: Sequence[str],
        health: WorkerHealth = HEALTHY,
        *,
        is_start: bool,
    ) -> None:
        """Store that a worker is alive, with its handlers. `is_start` sets when it started."""

    async def remove_worker(self, worker: str) -> None:
        """Delete the row of a worker that stopped."""

    async def live_workers(self) -> list[LiveWorker]:
        """Return the workers whose last heartbeat is recent, by name."""


class Pauses(Protocol):
    """The handlers and sources that operators have paused."""

    async def pauses(self) -> list[Pause]:
        """Return the handlers and sources that are paused."""


class UnroutedEvents(Protocol):
    """The recorded events that no handler wanted."""

    async def unrouted_types(self, after: int, *, limit: int) -> list[UnroutedType]:
        """Return the types of the newest `limit` events after an id that no handler wanted.

        Each has the id of its newest event; the oldest of these comes first.
        """

    async def routed_sources(self, *, limit: int) -> frozenset[str]:
        """Return the sources of those among the newest `limit` events that a handler wanted."""


class Store(
    Ledger,
    Queue,
    EffectCalls,
    AdminStore,
    RejectionStore,
    SecretStore,
    Registry,
    WorkerRegistry,
    Pauses,
    UnroutedEvents,
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

    async def maintenance(self) -> None:
        """Do the periodic work of the database itself, such as creating partitions."""

    async def purge_events(
        self, after: int, *, limit: int, horizon_seconds: float
    ) -> PurgeProgress:
        """Delete the events beyond the horizon among the `limit` events that follow `after`."""
