"""The part of maintenance that both stores do alike: the purge of old rows, page by page."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from onceward.model.admin import OperatorAction
from onceward.model.retention import Purgeable, PurgeProgress, UnfinishedJob
from onceward.model.weeks import Week
from onceward.ports import Row
from onceward.runtime.failpoints import Failpoints
from onceward.store.audit import add_audit_entry
from onceward.store.base import BaseStore, LedgerTransaction
from onceward.store.locks import Lock

PURGE_ACTION: Final = "purge"
"""The action in the audit entry of a purge."""

_RANGES: Final = {
    Purgeable.REJECTIONS: "rejections_range",
    Purgeable.DELIVERIES: "deliveries_range",
    Purgeable.ATTEMPTS: "attempts_range",
    Purgeable.JOBS: "jobs_range",
    Purgeable.EFFECTS: "effects_range",
    Purgeable.EVENTS: "events_range",
}
_PURGES: Final = {
    Purgeable.REJECTIONS: "purge_rejections",
    Purgeable.DELIVERIES: "purge_deliveries",
    Purgeable.ATTEMPTS: "purge_attempts",
    Purgeable.JOBS: "purge_jobs",
    Purgeable.EFFECTS: "purge_effects",
}


class SqlMaintenance(BaseStore):
    """The part of the port `MaintenanceStore` that both stores do alike."""

    _failpoints: Failpoints

    @abstractmethod
    def _stored_time(self, time: datetime) -> Any:
        """Return a time as the statements of this store take it."""

    @abstractmethod
    def _stored_ids(self, ids: list[int]) -> Any:
        """Return ids as the statements of this store take them."""

    async def ledger_time(self) -> datetime:
        """Return the time on the clock of the ledger."""
        (row,) = await self._read("clock")
        now: datetime = row["now_at"]
        return now

    async def unfinished_jobs(self, before: datetime, limit: int) -> list[UnfinishedJob]:
        """Return the oldest queued and failed jobs of events that are from before a time."""
        rows = await self._read("unfinished_jobs", before=self._stored_time(before), limit=limit)
        return [UnfinishedJob(**row) for row in rows]

    async def count_payloads(self, week: Week) -> tuple[int, int]:
        """Return how many payloads of a week would be dropped, and how many a job needs."""
        start, before = self._stored_time(week.starts_at), self._stored_time(week.ends_at)
        (row,) = await self._read("count_payloads", start=start, before=before)
        return row["rows"] - row["needed"], row["needed"]

    async def _without_restored(self, weeks: Sequence[Week], before: datetime) -> list[Week]:
        """Return the weeks that were not restored since a time."""
        rows = await self._read("restored_weeks", before=self._stored_time(before))
        restored = {row["week"] for row in rows}
        return [week for week in weeks if week.label not in restored]

    async def purge(
        self,
        table: Purgeable,
        after: int,
        *,
        limit: int,
        before: datetime,
        action: OperatorAction | None = None,
        must_be_archived: bool = False,
    ) -> PurgeProgress:
        """Delete what may go of the `limit` rows that follow `after`, if it is from before a time.

        If rows were deleted, the `action` is recorded in the same transaction. If payloads
        `must_be_archived`, events that have one stay: it is dropped first.
        """
        page: dict[str, object] = {"after": after, "before": self._stored_time(before)}
        lock = Lock.REJECTIONS if table is Purgeable.REJECTIONS else Lock.LEDGER
        async with self._transaction(lock) as transaction:
            (end,) = await transaction.run(_RANGES[table], limit=limit, **page)
            if not end["may_precede_old"]:
                return PurgeProgress(0, None)
            page["last"] = end["last"]
            if table is Purgeable.EVENTS:
                rows = await self._purge_events(
                    transaction, page, must_be_archived=must_be_archived
                )
            else:
                rows = len(await transaction.run(_PURGES[table], "purge", **page))
            if rows and action is not None:
                await add_audit_entry(transaction, action, PURGE_ACTION, table)
            self._failpoints.reach("purge.written")
        self._failpoints.reach("purge.committed")
        return PurgeProgress(rows, _next(end, limit))

    async def count_old(
        self,
        table: Purgeable,
        after: int,
        *,
        limit: int,
        before: datetime,
        must_be_archived: bool = False,
    ) -> PurgeProgress:
        """Count the rows that `purge` would delete."""
        page: dict[str, object] = {"after": after, "before": self._stored_time(before)}
        (end,) = await self._read(_RANGES[table], limit=limit, **page)
        if not end["may_precede_old"]:
            return PurgeProgress(0, None)
        page["last"] = end["last"]
        if table is Purgeable.EVENTS:
            rows = await self._read("old_events", *_archived(must_be_archived), **page)
        else:
            rows = await self._read(_PURGES[table], "dry_run", **page)
        return PurgeProgress(len(rows), _next(end, limit))

    async def _purge_events(
        self, transaction: LedgerTransaction, page: Mapping[str, object], *, must_be_archived: bool
    ) -> int:
        """Delete the old events of a page, and return their number.

        They are locked first: the deletion then sees the redelivery for which the lock waited.
        """
        conditions = ("locked", *_archived(must_be_archived))
        events = await transaction.run("old_events", *conditions, **page)
        ids = self._stored_ids([row["id"] for row in events])
        return len(await transaction.run("purge_events", events=ids))


def _archived(must_be_archived: bool) -> tuple[str, ...]:  # noqa: FBT001 - of one statement
    return ("archived",) if must_be_archived else ()


def _next(end: Row, limit: int) -> int | None:
    """Return the end of a page if more old rows may follow it: ids grow with time."""
    last: int = end["last"]
    return last if end["rows"] == limit else None
