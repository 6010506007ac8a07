"""What both stores do alike, over two primitives: a read, and a transaction of named statements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, Protocol

from onceward.errors import ConfigurationError, NotInState, PermanentError, RejectionCause
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
from onceward.model.effects import EffectStatus
from onceward.model.events import Arrival, Outcome, ProcessingState, Receipt
from onceward.model.jobs import Fail, FailureType, HandlerEntry, Job, JobStatus, Postpone, Retry
from onceward.ports import PurgeProgress, Row

INLINE_BODY_BYTES: Final = 64 * 1024
"""Larger bodies are loaded when their job starts, so that a batch of them fits in memory."""

NO_EVENT: Final = 0
"""What a rejected request became that told of nothing."""
RESCUE_DELAY_SECONDS: Final = 1.0
STALE_ROUTE_SECONDS: Final = 600.0
"""How long a route is kept that no process has any more. They renew theirs every minute."""

ENDED_BY_HANDLER: Final = "the handler ended its transaction by itself; only its return may do that"
HELD_AS_DUPLICATE_BODY: Final = (
    "Another event came before with the same body; requeue it to have it handled"
)
WORKER_DIED: Final = "The worker died while it ran this job alone"


class Run(Protocol):
    """Runs a named statement and answers with its rows."""

    def __call__(self, name: str, /, *given: str, **parameters: object) -> Awaitable[list[Row]]:
        """Run the statement called `name`, with its lines for what is `given`."""


class BaseStore(ABC):
    """The desk and the registrar of a store."""

    def __init__(self) -> None:
        self._source_ids: dict[str, int] = {}
        self._handler_ids: dict[str, int] = {}

    @abstractmethod
    async def _read(
        self, name: str, given: Sequence[str], parameters: Mapping[str, Any]
    ) -> list[Row]:
        """Run a named statement that only reads."""

    @abstractmethod
    async def _record_in(self, run: Run, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Record deliveries in a transaction of named statements."""

    @abstractmethod
    def _transaction(self) -> AbstractAsyncContextManager[Run]:
        """A transaction of named statements, one process at a time."""

    async def register(
        self, sources: Sequence[str], handlers: Sequence[HandlerEntry], retired: Sequence[str]
    ) -> list[str]:
        """Make sources and handlers known; answers with all handlers for which jobs are made."""
        async with self._transaction() as run:
            for name in sources:
                (row,) = await run("add_source", name=name)
                self._source_ids[name] = row["id"]
            for name in retired:
                await run("drop_routes", name=name)
            for handler in handlers:
                (row,) = await run(
                    "add_handler", name=handler.name, max_attempts=handler.max_attempts
                )
                self._handler_ids[handler.name] = row["id"]
                await _keep_routes(run, handler, row["id"])
            return [row["name"] for row in await run("routed_handlers")]

    async def load_body(self, job: Job) -> bytes:
        """The body of a job's event, where the claim left it out. Raises PermanentError."""
        place = {"event": job.event, "received_at": job.received_at}
        rows = await self._read("load_body", (), place)
        if not rows:
            message = "The payload of this event is no longer kept"
            raise PermanentError(message)
        return bytes(rows[0]["body"])

    async def tokens(self) -> dict[str, bytes]:
        """The SHA-256 of each admin token that was made here, by name."""
        return {row["name"]: bytes(row["sha256"]) for row in await self._read("tokens", (), {})}

    async def add_first_token(self, name: str, sha256: bytes) -> bool:
        """Keep the first token. False when there is one already."""
        async with self._transaction() as run:
            return bool(await run("add_first_token", name=name, sha256=sha256))

    async def events(self, query: PageQuery) -> list[EventItem]:
        """Events, the newest first."""
        given = [*_given(query), *([query.status] if query.status else [])]
        rows = await self._read("events_page", given, _parameters(query))
        return [
            EventItem(**{**row, "processing_state": ProcessingState(row["processing_state"])})
            for row in rows
        ]

    async def jobs(self, query: PageQuery) -> list[JobItem]:
        """Jobs, the newest first."""
        given = _given(query)
        if query.status:
            live = query.status in (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
            given.append(query.status if live else "ended")
        rows = await self._read("jobs_page", given, _parameters(query))
        return [_job_item(row) for row in rows]

    async def effects(self, query: PageQuery) -> list[EffectItem]:
        """Effects, the newest first."""
        rows = await self._read("effects_page", _given(query), _parameters(query))
        return [EffectItem(**{**row, "status": EffectStatus(row["status"])}) for row in rows]

    async def deliveries(self, query: PageQuery) -> list[DeliveryItem]:
        """Deliveries, the newest first."""
        rows = await self._read("deliveries_page", _given(query), _parameters(query))
        return [DeliveryItem(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows]

    async def audit(self, query: PageQuery) -> list[AuditItem]:
        """Audit entries, the newest first."""
        rows = await self._read("audit_page", _given(query), _parameters(query))
        return [AuditItem(**row) for row in rows]

    async def rejections(self, query: PageQuery) -> list[RejectionItem]:
        """Requests that did not verify, the newest first."""
        rows = await self._read("rejections_page", _given(query), _parameters(query))
        return [
            RejectionItem(
                **{**row, "cause": RejectionCause(row["cause"]), "kept": bool(row["kept"])}
            )
            for row in rows
        ]

    async def rejection_counts(self) -> list[RejectionCount]:
        """How many requests did not verify, by source and check."""
        rows = await self._read("rejection_counts", (), {})
        return [RejectionCount(**{**row, "cause": RejectionCause(row["cause"])}) for row in rows]

    async def rejection(self, id: int) -> StoredRejection | None:
        """One request that did not verify. None when there is no such."""
        rows = await self._read("rejection", (), {"id": id})
        return StoredRejection(**rows[0]) if rows else None

    async def add_rejections(self, rejections: Sequence[Rejection], *, keep: int) -> None:
        """Note and count them; of each source only the newest are kept."""
        async with self._transaction() as run:
            for rejection in rejections:
                source = self._source_ids[rejection.source]
                await run(
                    "add_rejection",
                    source=source,
                    cause=rejection.cause,
                    reason=rejection.check,
                    received_at=rejection.received_at,
                    last_at=rejection.last_at,
                    count=rejection.count,
                    request=rejection.request,
                    body=rejection.body,
                )
            for (name, cause), count in _tally(rejections).items():
                source = self._source_ids[name]
                await run("count_rejections", source=source, cause=cause, count=count)
            for name in {rejection.source for rejection in rejections}:
                await run("trim_rejections", source=self._source_ids[name], keep=keep)

    async def receive_rejection(
        self, id: int, arrivals: Sequence[Arrival], act: OperatorAction
    ) -> ManualRecording:
        """Record what a rejected request turned out to be about, with its audit entry."""
        subject = f"rejection:{id}"
        async with self._transaction() as run:
            receipts = await self._record_in(run, arrivals)
            first = receipts[0].event if receipts else NO_EVENT
            if not await run("receive_rejection", id=id, event=first):
                raise NotInState(f"Somebody else received rejection {id}.")
            return ManualRecording(tuple(receipts), await _note(run, act, "verify_again", subject))

    async def conflict(self, delivery: int) -> StoredDelivery | None:
        """A redelivery, with what an event of its own needs. None when there is no such."""
        rows = await self._read("conflict", (), {"id": delivery})
        if not rows:
            return None
        return StoredDelivery(**{**rows[0], "outcome": Outcome(rows[0]["outcome"])})

    async def accept_conflict(
        self, delivery: int, arrival: Arrival, act: OperatorAction
    ) -> ManualRecording:
        """Record a conflict as an event of its own, with its audit entry."""
        subject = f"delivery:{delivery}"
        async with self._transaction() as run:
            (receipt,) = await self._record_in(run, [arrival])
            if not await run("accept_conflict", id=delivery, event=receipt.event):
                raise NotInState(f"Somebody else accepted delivery {delivery}.")
            return ManualRecording((receipt,), await _note(run, act, "accept_conflict", subject))

    async def store_secret(self, source: str, secret: bytes) -> None:
        """Keep a secret, durably."""
        async with self._transaction() as run:
            await run("store_secret", source=self._source_ids[source], secret=secret)

    async def provisioned_secrets(self) -> list[ProvisionedSecret]:
        """All of them, by source, the newest first."""
        return [ProvisionedSecret(**row) for row in await self._read("provisioned_secrets", (), {})]

    async def delete_secrets(self, source: str) -> int:
        """Forget those of one source; answers with how many there were."""
        async with self._transaction() as run:
            return len(await run("delete_secrets", name=source))

    async def purge_events(
        self, after: int, *, limit: int, horizon_seconds: float
    ) -> PurgeProgress:
        """Forget events beyond the horizon, of the `limit` that follow `after`."""
        async with self._transaction() as run:
            (row,) = await run(
                "purge_events", after=after, limit=limit, horizon_seconds=horizon_seconds
            )
        return PurgeProgress(row["purged"], row["last"] if row["has_more"] else None)

    async def requeue(self, job: int, act: OperatorAction) -> Requeued | None:
        """Queue a failed or cancelled job again, with its audit entry. None when it was neither."""
        async with self._transaction() as run:
            rows = await run(
                "requeue",
                job=job,
                actor=act.actor,
                authenticated_as=act.authenticated_as,
                reason=act.reason,
            )
        if not rows:
            return None
        row = rows[0]
        entry = _entry(
            act, "manual_requeue", f"job:{job}", id=row["audit"], created_at=row["created_at"]
        )
        return Requeued(str(job), row["available_at"], entry)

    async def job_status(self, job: int) -> JobStatus | None:
        """Where a job stands. None when there is no such job."""
        rows = await self._read("job_status", (), {"job": job})
        return JobStatus(rows[0]["status"]) if rows else None

    async def ready(self) -> None:
        """Raises StoreError unless the ledger can be read."""
        await self._read("ping", (), {})


async def _note(run: Run, act: OperatorAction, action: str, subject: str) -> AuditItem:
    """Write an audit entry."""
    (row,) = await run(
        "note_act",
        actor=act.actor,
        authenticated_as=act.authenticated_as,
        action=action,
        reason=act.reason,
        subject=subject,
    )
    return _entry(act, action, subject, **row)


def _entry(
    act: OperatorAction, action: str, subject: str, *, id: str, created_at: datetime
) -> AuditItem:
    return AuditItem(
        id=id,
        job_id=subject.removeprefix("job:") if subject.startswith("job:") else None,
        subject=subject,
        action=action,
        actor=act.actor,
        authenticated_as=act.authenticated_as,
        reason=act.reason,
        created_at=created_at,
    )


def refuse_weak(weak: Sequence[str], *, allowed: bool) -> None:
    """Refuse a database that may lose what it acknowledged, by the name of each weak setting."""
    if weak and not allowed:
        advice = (
            "An acknowledged event could be lost. Mend the setting, or accept the loss with "
            "--allow-weak-durability (ONCEWARD_ALLOW_WEAK_DURABILITY=1)."
        )
        raise ConfigurationError([*(f"{fault}." for fault in weak), advice])


def error_statement(settlement: Retry | Postpone | Fail) -> str:
    """The name of the statement that ends an attempt so."""
    return "postpone" if isinstance(settlement, Postpone) else "settle_error"


def error_parameters(
    token: str, job: int, settlement: Retry | Postpone | Fail, elapsed_seconds: float
) -> dict[str, Any]:
    """The parameters of the statement that ends an attempt so."""
    outcome: dict[str, Any]
    match settlement:
        case Postpone(delay_seconds=delay_seconds):
            outcome = {"delay_seconds": delay_seconds}
        case Retry(delay_seconds=delay_seconds):
            outcome = {"status": "queued", "delay_seconds": delay_seconds, "failure_type": None}
        case Fail(failure_type=failure_type):
            outcome = {"status": "failed", "delay_seconds": 0.0, "failure_type": failure_type}
    return {
        "token": token,
        "job": job,
        "error": settlement.error,
        "elapsed_seconds": elapsed_seconds,
        **outcome,
    }


async def _keep_routes(run: Run, handler: HandlerEntry, key: int) -> None:
    """Add our routes to those of other versions of the handler, and forget long unused ones.

    While two versions run side by side, whatever either of them wants makes a job.
    """
    await run("drop_stale_routes", handler=key, stale_seconds=STALE_ROUTE_SECONDS)
    for route in handler.routes:
        await run(
            "add_route",
            handler=key,
            source=route.source,
            type=route.literal,
            is_prefix=route.is_prefix,
        )


def _job_item(row: Row) -> JobItem:
    failure = row["failure_type"]
    typed = {
        "status": JobStatus(row["status"]),
        "failure_type": FailureType(failure) if failure else None,
    }
    return JobItem(**{**row, **typed})


def _tally(rejections: Sequence[Rejection]) -> Counter[tuple[str, RejectionCause]]:
    tally: Counter[tuple[str, RejectionCause]] = Counter()
    for rejection in rejections:
        tally[rejection.source, rejection.cause] += rejection.count
    return tally


def _given(query: PageQuery) -> list[str]:
    names = ("after", "status", "event_id", "reference")
    given = [name for name in names if getattr(query, name) is not None]
    return [*given, "duplicate_body"] if query.duplicate_body else given


def _parameters(query: PageQuery) -> dict[str, Any]:
    return {
        "limit": query.limit,
        "after": query.after,
        "status": query.status,
        "event_id": query.event_id,
        "reference": query.reference,
    }
