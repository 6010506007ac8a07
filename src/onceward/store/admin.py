"""Lists, operator actions and rejections, on both stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from onceward.errors import NotInState, RejectionCause
from onceward.model.admin import (
    MAX_WAITING_COUNTED,
    AttemptItem,
    AuditItem,
    DeliveryItem,
    EffectItem,
    EventItem,
    JobDetail,
    JobItem,
    ManualRecording,
    OperatorAction,
    PageQuery,
    Rejection,
    RejectionCount,
    RejectionItem,
    StoredDelivery,
    StoredRejection,
    WaitReason,
)
from onceward.model.effects import EffectStatus
from onceward.model.events import Arrival, Outcome, ProcessingState
from onceward.model.jobs import FailureType, JobStatus
from onceward.ports import Row
from onceward.store.audit import add_audit_entry
from onceward.store.locks import Lock
from onceward.store.queue_admin import SqlQueueAdmin
from onceward.store.review import SqlReview

NO_EVENT: Final = 0
"""Stands for the event of a received rejection that contained none."""

_FILTERS: Final = (
    *("after", "status", "source", "handler", "event_id", "reference", "ordering_key", "effect_id"),
    *("subject", "failure_type"),
)
_LIVE: Final = (JobStatus.QUEUED, JobStatus.IN_PROGRESS)


class SqlAdminStore(SqlQueueAdmin, SqlReview):
    """The ports `AdminStore` and `RejectionStore`."""

    async def events(self, query: PageQuery) -> list[EventItem]:
        """Return a page of events, newest first."""
        conditions = _conditions(query)
        if query.status:
            conditions.append(query.status)  # most states have an index of their own
        rows = await self._read("events_page", *conditions, **_parameters(query))
        return [
            EventItem(
                **{
                    **row,
                    "processing_state": ProcessingState(row["processing_state"]),
                    "type_wanted": bool(row["type_wanted"]),
                }
            )
            for row in rows
        ]

    async def jobs(self, query: PageQuery) -> list[JobItem]:
        """Return a page of jobs, newest first."""
        conditions = _conditions(query)
        if query.status:
            conditions.append(query.status if query.status in _LIVE else "ended")
        rows = await self._read("jobs_page", *conditions, **_parameters(query))
        return [JobItem(**_job_fields(row)) for row in rows]

    async def job(self, id: int, *, attempts: int) -> JobDetail | None:
        """Return a job with its newest failed attempts, or None if the id is unknown."""
        rows = await self._read("jobs_page", "id", id=id, limit=1)
        if not rows:
            return None
        failed = await self._read("failed_attempts", job=id, limit=attempts)
        items = tuple(AttemptItem(**row) for row in failed)
        (behind,) = await self._read("waiting_behind", job=id, limit=MAX_WAITING_COUNTED)
        return JobDetail(
            **_job_fields(rows[0]), failed_attempts=items, waiting_behind=behind["jobs"]
        )

    async def effects(self, query: PageQuery) -> list[EffectItem]:
        """Return a page of effects, newest first."""
        rows = await self._page("effects_page", query)
        return [EffectItem(**{**row, "status": EffectStatus(row["status"])}) for row in rows]

    async def deliveries(self, query: PageQuery) -> list[DeliveryItem]:
        """Return a page of deliveries, newest first."""
        rows = await self._page("deliveries_page", query)
        return [DeliveryItem(**{**row, "outcome": Outcome(row["outcome"])}) for row in rows]

    async def audit(self, query: PageQuery) -> list[AuditItem]:
        """Return a page of audit entries, newest first."""
        return [AuditItem(**row) for row in await self._page("audit_page", query)]

    async def rejections(self, query: PageQuery) -> list[RejectionItem]:
        """Return a page of rejected requests, newest first."""
        rows = await self._page("rejections_page", query)
        return [
            RejectionItem(
                **{**row, "cause": RejectionCause(row["cause"]), "kept": bool(row["kept"])}
            )
            for row in rows
        ]

    async def _page(self, name: str, query: PageQuery) -> list[Row]:
        return await self._read(name, *_conditions(query), **_parameters(query))

    async def rejection_counts(self) -> list[RejectionCount]:
        """Return the number and the times of rejected requests by source and cause."""
        rows = await self._read("rejection_counts")
        return [RejectionCount(**{**row, "cause": RejectionCause(row["cause"])}) for row in rows]

    async def rejection(self, id: int) -> StoredRejection | None:
        """Return a rejected request, or None if the id is unknown."""
        rows = await self._read("load_rejection", id=id)
        return StoredRejection(**rows[0]) if rows else None

    async def add_rejections(self, rejections: Sequence[Rejection], *, keep: int) -> None:
        """Store and count rejected requests.

        Keep `keep` of each source, beside the first and the last of each cause.
        """
        async with self._transaction(Lock.REJECTIONS) as transaction:
            for rejection in rejections:
                await transaction.run(
                    "add_rejection",
                    source=self._source_ids[rejection.source],
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
                await transaction.run("count_rejections", source=source, cause=cause, count=count)
            for name in {rejection.source for rejection in rejections}:
                source = self._source_ids[name]
                await transaction.run("trim_rejections", source=source, keep=keep)

    async def receive_rejection(
        self, id: int, arrivals: Sequence[Arrival], action: OperatorAction
    ) -> ManualRecording:
        """Record the events of a rejected request, with an audit entry.

        Raise NotInState if another operator was faster.
        """
        async with self._transaction(Lock.LEDGER) as transaction:
            receipts = await transaction.record(arrivals)
            first = receipts[0].event if receipts else NO_EVENT
            if not await transaction.run("receive_rejection", id=id, event=first):
                raise NotInState(f"Another operator has received rejection {id}.")
            entry = await add_audit_entry(transaction, action, "verify_again", f"rejection:{id}")
            return ManualRecording(tuple(receipts), entry)

    async def conflict(self, delivery: int) -> StoredDelivery | None:
        """Return a redelivery with the facts of its event, or None if the id is unknown."""
        rows = await self._read("load_conflict", id=delivery)
        return (
            StoredDelivery(**{**rows[0], "outcome": Outcome(rows[0]["outcome"])}) if rows else None
        )

    async def accept_conflict(
        self, delivery: int, arrival: Arrival, action: OperatorAction
    ) -> ManualRecording:
        """Record a conflict as an event of its own, with an audit entry.

        Raise NotInState if another operator was faster.
        """
        async with self._transaction(Lock.LEDGER) as transaction:
            (receipt,) = await transaction.record([arrival])
            if not await transaction.run("accept_conflict", id=delivery, event=receipt.event):
                raise NotInState(f"Another operator has accepted delivery {delivery}.")
            subject = f"delivery:{delivery}"
            entry = await add_audit_entry(transaction, action, "accept_conflict", subject)
            return ManualRecording((receipt,), entry)


def _job_fields(row: Row) -> dict[str, Any]:
    failure, waiting = row["failure_type"], row["waiting"]
    typed = {
        "status": JobStatus(row["status"]),
        "failure_type": FailureType(failure) if failure else None,
        "waiting": WaitReason(waiting) if waiting else None,
        "even_if_stale": bool(row["even_if_stale"]),
    }
    return {**row, **typed}


def _tally(rejections: Sequence[Rejection]) -> Counter[tuple[str, RejectionCause]]:
    tally: Counter[tuple[str, RejectionCause]] = Counter()
    for rejection in rejections:
        tally[rejection.source, rejection.cause] += rejection.count
    return tally


def _conditions(query: PageQuery) -> list[str]:
    conditions = [name for name in _FILTERS if getattr(query, name) is not None]
    return [*conditions, "duplicate_body"] if query.duplicate_body else conditions


def _parameters(query: PageQuery) -> dict[str, Any]:
    return {"limit": query.limit, **{name: getattr(query, name) for name in _FILTERS}}
