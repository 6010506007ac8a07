"""What the flow needs from a store, as Protocols. One suite holds both stores to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from onceward.model.admin import (
    AuditItem,
    DeliveryItem,
    EffectItem,
    EventItem,
    JobItem,
    ManualRecording,
    OperatorAction,
    PageQuery,
    ProvisionedSecret,
    Rejection,
    RejectionCount,
    RejectionItem,
    Requeued,
    StoredDelivery,
    StoredRejection,
)
from onceward.model.events import Arrival, Receipt
from onceward.model.jobs import Claim, Fail, HandlerEntry, Job, JobStatus, Postpone, Retry
from onceward.runtime.sql_text import Sql

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PurgeProgress:
    """How many events were forgotten, and where to go on; None at the end."""

    events: int
    next: int | None


class Ledger(Protocol):
    """Where deliveries are recorded."""

    max_writers: int
    """How many batches may be written at one time."""

    def batch_group(self, arrival: Arrival) -> bool:
        """Whether it seems to repeat an event of the ledger, and is best written with such."""

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Write all of them durably, each event once; one answer each, in their order.

        Raises Unwritable when the database refuses one of them, and another StoreError when it
        cannot be used: then none of them is known to be written.
        """


@dataclass(frozen=True, slots=True)
class Rows:
    """What a statement answered: its rows, and how many it touched."""

    rows: list[Row]
    count: int


class StoreTransaction(Protocol):
    """A handler's transaction, from its first statement to its end."""

    async def run(self, statement: Sql, parameters: Mapping[str, Any]) -> Rows:
        """Run one statement of the handler."""

    async def mark_effect(self, job: int, key: str, reference: str | None) -> bool:
        """Mark an effect as done. True for the first, over all events."""

    async def settle(self, token: str, *jobs: int) -> None:
        """Write the jobs' done. Raises LeaseLost, or TransactionMisuse if a handler ended it."""

    async def commit(self) -> None:
        """Make all of it durable. Raises OutcomeUnknown when the connection is lost meanwhile."""


class Queue(Protocol):
    """Where workers find jobs, and settle them."""

    max_shared_transactions: int
    """How many transactions that jobs share may be open at one time in a process."""

    async def claim(
        self,
        *,
        token: str,
        worker: str,
        handlers: Sequence[str],
        limit: int,
        solo: bool,
        lease_seconds: float,
        ended: Sequence[str],
    ) -> Claim:
        """End the leases `ended`, rescue expired ones, and lease up to `limit` due jobs.

        With `solo`, at most one job that must run alone; without it, none of these. The lease
        goes by `token`, so that it can be ended also when the answer was lost.
        """

    async def end_leases(self, tokens: Sequence[str]) -> None:
        """Forget leases of which every job is settled."""

    async def load_body(self, job: Job) -> bytes:
        """The body of a job's event, where the claim left it out."""

    async def renew(self, tokens: Sequence[str], lease_seconds: float) -> set[str]:
        """Prolong leases; answers with those still held."""

    async def release(self, token: str, jobs: Sequence[int]) -> None:
        """Let go of jobs that were not started."""

    async def settle_error(
        self, token: str, job: int, settlement: Retry | Postpone | Fail, elapsed_seconds: float
    ) -> bool:
        """End an attempt that failed. False when the lease was lost."""

    async def settle_done(self, token: str, *jobs: int) -> bool:
        """End attempts that wrote nothing. False when the lease was lost."""

    def begin(
        self, location: Callable[[], str], *, shared: bool = False
    ) -> AbstractAsyncContextManager[StoreTransaction]:
        """A transaction for a handler. What is not committed at its end is rolled back.

        `whereabouts` says where the handler is now, for the error when it holds others up. One
        that is `shared` by several jobs waits for nobody's locks and raises NotShared when a
        statement would reach beyond the job that runs it.
        """

    def announcements(self) -> AsyncGenerator[None, None]:
        """Yields when jobs may have become due, whoever made them."""


class AdminStore(Protocol):
    """What operators see and do."""

    async def events(self, query: PageQuery) -> list[EventItem]:
        """Events, the newest first."""

    async def jobs(self, query: PageQuery) -> list[JobItem]:
        """Jobs, the newest first."""

    async def effects(self, query: PageQuery) -> list[EffectItem]:
        """Effects, the newest first."""

    async def deliveries(self, query: PageQuery) -> list[DeliveryItem]:
        """Deliveries, the newest first."""

    async def audit(self, query: PageQuery) -> list[AuditItem]:
        """Audit entries, the newest first."""

    async def rejections(self, query: PageQuery) -> list[RejectionItem]:
        """Requests that did not verify, the newest first."""

    async def rejection_counts(self) -> list[RejectionCount]:
        """How many requests did not verify, by source and check."""

    async def rejection(self, id: int) -> StoredRejection | None:
        """One request that did not verify. None when there is no such."""

    async def receive_rejection(
        self, id: int, arrivals: Sequence[Arrival], act: OperatorAction
    ) -> ManualRecording:
        """Record what a rejected request turned out to be about, with its audit entry."""

    async def conflict(self, delivery: int) -> StoredDelivery | None:
        """A redelivery, with what an event of its own needs. None when there is no such."""

    async def accept_conflict(
        self, delivery: int, arrival: Arrival, act: OperatorAction
    ) -> ManualRecording:
        """Record a conflict as an event of its own, with its audit entry."""

    async def requeue(self, job: int, act: OperatorAction) -> Requeued | None:
        """Queue a failed or cancelled job again, with its audit entry. None when it was neither."""

    async def job_status(self, job: int) -> JobStatus | None:
        """Where a job stands. None when there is no such job."""

    async def ready(self) -> None:
        """Raises StoreError unless the ledger can be read."""


class RejectionStore(Protocol):
    """Where requests are noted that did not verify."""

    async def add_rejections(self, rejections: Sequence[Rejection], *, keep: int) -> None:
        """Note and count them; of each source only the newest are kept."""


class SecretStore(Protocol):
    """Where secrets are kept that senders handed over."""

    async def store_secret(self, source: str, secret: bytes) -> None:
        """Keep a secret, durably."""

    async def provisioned_secrets(self) -> list[ProvisionedSecret]:
        """All of them, by source, the newest first."""

    async def delete_secrets(self, source: str) -> int:
        """Forget those of one source; answers with how many there were."""


class Registry(Protocol):
    """What the processes tell the store of themselves."""

    async def register(
        self, sources: Sequence[str], handlers: Sequence[HandlerEntry], retired: Sequence[str]
    ) -> list[str]:
        """Make sources and handlers known; answers with all handlers for which jobs are made."""

    def prepare(self) -> AbstractAsyncContextManager[StoreTransaction]:
        """A transaction for the user's own tables, one process at a time."""

    async def tokens(self) -> dict[str, bytes]:
        """The SHA-256 of each admin token that was made here, by name."""

    async def add_first_token(self, name: str, sha256: bytes) -> bool:
        """Keep the first token. False when there is one already."""


class Store(Ledger, Queue, AdminStore, RejectionStore, SecretStore, Registry, Protocol):
    """A whole store."""

    async def open(self, *, serving: bool) -> None:
        """Connect, check durability and the schema. `serving` processes write; others look."""

    async def close(self) -> None:
        """Let go of everything."""

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; answers with what was applied."""

    async def maintenance(self) -> None:
        """Do what has to be done from time to time."""

    async def purge_events(
        self, after: int, *, limit: int, horizon_seconds: float
    ) -> PurgeProgress:
        """Forget events beyond the horizon, of the `limit` that follow `after`."""
