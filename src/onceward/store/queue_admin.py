"""Operators' actions on jobs, handlers and sources, on both stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Literal

from onceward.errors import NotInState
from onceward.model.admin import (
    Cancelled,
    ForgottenWatermark,
    HandlerItem,
    OperatorAction,
    PageQuery,
    Pausable,
    Pause,
    PauseChange,
    Requeued,
    RouteItem,
    SourceItem,
    WatermarkItem,
)
from onceward.model.archive import EventKey
from onceward.model.jobs import CANCELLABLE, JobStatus
from onceward.model.versions import parse_version
from onceward.model.weeks import Week
from onceward.ports import Row
from onceward.runtime.redact import printable
from onceward.store.archives import restore_advice
from onceward.store.audit import add_audit_entry, audit_item
from onceward.store.base import BaseStore, LedgerTransaction
from onceward.store.locks import Lock
from onceward.work.definition.queue_rules import rate_text

WAKE_PAGE_JOBS: Final = 1000
WAKE_PAGES: Final = 10
"""The pages of parked jobs that a resume looks at. Workers look at the rest periodically."""

_CANCELLABLE: Final = ", ".join(sorted(CANCELLABLE))
_PAUSE: Final = {Pausable.HANDLER: "pause_handler", Pausable.SOURCE: "pause_source"}
_RESUME: Final = {Pausable.HANDLER: "resume_handler", Pausable.SOURCE: "resume_source"}
_LOAD_PAUSE: Final = {Pausable.HANDLER: "handler_pause", Pausable.SOURCE: "source_pause"}


class SqlQueueAdmin(BaseStore):
    """The part of the port `AdminStore` that changes the queue."""

    _wake_after = 0
    """The parked job at which the next search for jobs to wake begins."""

    async def handlers(self, query: PageQuery) -> list[HandlerItem]:
        """Return a page of handlers, newest first."""
        rows = await self._names_page("handlers_page", query)
        routes: dict[str, list[RouteItem]] = defaultdict(list)
        for route in await self._read("routes_of_handlers"):
            item = RouteItem(route["pattern"], route["source"], route["filter"] or None)
            routes[route["handler"]].append(item)
        return [_handler_item(row, routes[row["name"]]) for row in rows]

    async def sources(self, query: PageQuery) -> list[SourceItem]:
        """Return a page of sources, newest first."""
        return [SourceItem(**row) for row in await self._names_page("sources_page", query)]

    async def _names_page(self, name: str, query: PageQuery) -> list[Row]:
        conditions = ["after"] if query.after is not None else []
        return await self._read(name, *conditions, after=query.after, limit=query.limit)

    async def requeue(
        self, job: int, action: OperatorAction, *, even_if_stale: bool = False
    ) -> Requeued | None:
        """Queue a job that failed, was ignored or was cancelled again, with an audit entry.

        With `even_if_stale`, it is applied even if its key has applied a newer version.
        Return None if the job is in another state. Raise NotInState if its payload is gone.
        """
        name = "manual_requeue_even_if_stale" if even_if_stale else "manual_requeue"
        async with self._transaction(Lock.LEDGER) as transaction:
            rows = await transaction.run(
                "requeue",
                job=job,
                even_if_stale=even_if_stale,
                action=name,
                actor=action.actor,
                authenticated_as=action.authenticated_as,
                reason=action.reason,
            )
            if not rows:
                await _refuse_without_payload(transaction, job)
                return None
        row = rows[0]
        entry = audit_item(
            action, name, f"job:{job}", id=row["audit"], created_at=row["created_at"]
        )
        return Requeued(str(job), row["available_at"], entry)

    async def watermarks(self, query: PageQuery) -> list[WatermarkItem]:
        """Return a page of watermarks, newest first."""
        filters = {name: getattr(query, name) for name in ("after", "handler", "key", "event_id")}
        conditions = [name for name, value in filters.items() if value is not None]
        rows = await self._read("watermarks_page", *conditions, limit=query.limit, **filters)
        return [_watermark_item(row) for row in rows]

    async def forget_watermark(
        self, handler: str, key: str, action: OperatorAction
    ) -> ForgottenWatermark | None:
        """Delete the watermark of a handler's key, with an audit entry. Return None without one."""
        async with self._transaction(Lock.LEDGER) as transaction:
            rows = await transaction.run("forget_watermark", handler=handler, key=key)
            if not rows:
                return None
            subject = f"watermark:{handler}:{key}"
            entry = await add_audit_entry(transaction, action, "forget_watermark", subject)
        return ForgottenWatermark(_watermark_item({**rows[0], "handler": handler}), entry)

    async def cancel(self, job: int, action: OperatorAction) -> Cancelled | None:
        """Cancel a job that has not ended, with an audit entry; take it from its lease.

        Return None if the id is unknown. Raise NotInState if the job is done or cancelled.
        """
        # A settlement in flight holds the row: wait for it while workers can still claim.
        await self._read("await_settlement", job=job)
        async with self._transaction(Lock.CLAIMS) as transaction:
            # The lease first, as in settlements: the other order would deadlock with them.
            await transaction.run("unlease", job=job)
            rows = await transaction.run("cancel", job=job)
            if not rows:
                await _refuse_cancel(transaction, job)
                return None
            row = rows[0]
            await transaction.run("interrupt_calls", job=job)
            entry = await add_audit_entry(transaction, action, "cancel", f"job:{job}")
            if row["ordering_key"] is not None:
                await transaction.run(
                    "wake_key", handler=row["handler"], ordering_key=row["ordering_key"]
                )
        return Cancelled(str(job), row["finished_at"], entry)

    async def job_status(self, job: int) -> JobStatus | None:
        """Return the status of a job, or None if the id is unknown."""
        return _status(await self._read("job_status", job=job))

    async def pause(self, kind: Pausable, name: str, action: OperatorAction) -> PauseChange | None:
        """Let the jobs of a handler or source wait, with an audit entry.

        Return None if the name is unknown. Raise NotInState if it is already paused.
        """
        async with self._transaction(Lock.LEDGER) as transaction:
            if change := await _change_pause(transaction, _PAUSE[kind], kind, name, action):
                return change
            if not await transaction.run(_LOAD_PAUSE[kind], name=name):
                return None
            raise NotInState(f"The {kind} {name} is already paused. Nothing was changed.")

    async def resume(self, kind: Pausable, name: str, action: OperatorAction) -> PauseChange | None:
        """Let the jobs of a paused handler or source run again, with an audit entry.

        Return None if the name is unknown. Raise NotInState if it is not paused.
        """
        # Claims park the jobs of a paused source, but do not touch those of a paused handler.
        lock = Lock.CLAIMS if kind is Pausable.SOURCE else Lock.LEDGER
        async with self._transaction(lock) as transaction:
            if change := await _change_pause(transaction, _RESUME[kind], kind, name, action):
                if kind is Pausable.SOURCE:
                    await _wake_parked(transaction)
                return change
            if not await transaction.run(_LOAD_PAUSE[kind], name=name):
                return None
            raise NotInState(f"The {kind} {name} is not paused. Nothing was changed.")

    async def pauses(self) -> list[Pause]:
        """Return the handlers and sources that are paused."""
        rows = await self._read("pauses")
        return [Pause(Pausable(row["kind"]), row["name"], row["paused_at"]) for row in rows]

    async def wake_parked(self) -> None:
        """Wake parked jobs that need not wait any longer.

        Look at some pages of them, and go on where jobs are found. Claims run between two pages.
        """
        pages = 0
        while pages < WAKE_PAGES:
            async with self._transaction(Lock.CLAIMS) as transaction:
                page = await _wake_page(transaction, self._wake_after)
            self._wake_after = page["last"] or 0
            if page["last"] is None:
                return
            pages = 0 if page["woken"] else pages + 1


async def _refuse_without_payload(transaction: LedgerTransaction, job: int) -> None:
    """Raise NotInState if the payload of a job is gone, with the command that puts it back."""
    rows = await transaction.run("missing_payload", job=job)
    if not rows:
        return
    event = rows[0]
    week, key = Week.of(event["received_at"]), EventKey(event["source"], event["event_id"])
    advice = await restore_advice(transaction, event["id"], key, week, then="requeue")
    raise NotInState(
        f"Job {job} cannot be requeued: the payload of its event {printable(str(key))} was dropped "
        f"from the ledger. {advice}"
    )


async def _refuse_cancel(transaction: LedgerTransaction, job: int) -> None:
    """Raise NotInState with the status of a job, if it exists."""
    status = _status(await transaction.run("job_status", job=job))
    if status is not None:
        message = f"Job {job} is {status}; only {_CANCELLABLE} jobs can be cancelled."
        raise NotInState(message)


async def _change_pause(
    transaction: LedgerTransaction, name: str, kind: Pausable, subject: str, action: OperatorAction
) -> PauseChange | None:
    """Run the statement `name`. Audit it under the same name if it changed a row."""
    rows = await transaction.run(name, name=subject)
    if not rows:
        return None
    entry = await add_audit_entry(transaction, action, name, f"{kind}:{subject}")
    return PauseChange(subject, rows[0]["paused_at"], entry)


async def _wake_parked(transaction: LedgerTransaction) -> None:
    """Wake the parked jobs that need not wait any longer, among the oldest."""
    after = 0
    for _ in range(WAKE_PAGES):
        page = await _wake_page(transaction, after)
        if page["last"] is None:
            return
        after = page["last"]


async def _wake_page(transaction: LedgerTransaction, after: int) -> Row:
    (page,) = await transaction.run("wake_parked", after=after, limit=WAKE_PAGE_JOBS)
    return page


def _status(rows: list[Row]) -> JobStatus | None:
    return JobStatus(rows[0]["status"]) if rows else None


def _watermark_item(row: Row) -> WatermarkItem:
    version = parse_version(row["version"])
    kind: Literal["number", "text"] = "text" if isinstance(version, str) else "number"
    return WatermarkItem(**{**row, "version": str(version), "version_kind": kind})


def _handler_item(row: Row, routes: Sequence[RouteItem]) -> HandlerItem:
    interval = row["rate_interval_seconds"]
    return HandlerItem(
        id=row["id"],
        name=row["name"],
        paused_at=row["paused_at"],
        ordering_key=row["ordering_key"],
        on_head_failed="hold" if row["holds_key"] else "continue",
        concurrency=row["concurrency"],
        rate=None if interval is None else rate_text(interval),
        max_attempts=row["max_attempts"],
        routes=tuple(routes),
    )
