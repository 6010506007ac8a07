"""Maintenance on SQLite: without partitions, old rows are deleted in short transactions."""

from __future__ import annotations

import json
import sqlite3
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final, TypeVar

from onceward.model.admin import OperatorAction
from onceward.model.retention import DroppedPayloads, Election
from onceward.model.weeks import Week
from onceward.runtime.time_units import epoch_microseconds
from onceward.store.archives import require_archived
from onceward.store.audit import add_audit_entry
from onceward.store.locks import Lock
from onceward.store.maintenance import PURGE_ACTION, SqlMaintenance

T = TypeVar("T")

PAGE_PAYLOADS: Final = 200
"""Payloads that one transaction looks at, and audit entries that one deletes: receivers wait."""
VACUUM_PAGES: Final = 256
"""Free pages that one transaction gives back: 1 MiB at the usual page size."""
MAX_VACUUMS: Final = 1000
"""Transactions in which one maintenance gives free pages back."""

_TRAIL: Final = "audit"
# The trigger that keeps the audit trail lets entries behind the horizon go.
_MOVE_AUDIT_HORIZON: Final = """
    UPDATE onceward_counters SET value = max(value, ?) WHERE name = 'audit_horizon'
"""
_OLD_ENTRIES: Final = "SELECT EXISTS (SELECT 1 FROM onceward_audit WHERE at < ?)"
_PURGE_AUDIT: Final = """
    DELETE FROM onceward_audit WHERE id IN (
        SELECT id FROM onceward_audit WHERE at < ? ORDER BY id LIMIT ?
    )
"""


class SqliteMaintenance(SqlMaintenance):
    """The part of the port `MaintenanceStore` in which SQLite differs."""

    @abstractmethod
    async def _commit(
        self, function: Callable[[sqlite3.Connection], T], *, receiver: bool = False
    ) -> T:
        """Wait for the gate, then run a function in a transaction of the writer."""

    def _stored_time(self, time: datetime) -> int:
        return epoch_microseconds(time)

    def _stored_ids(self, ids: list[int]) -> str:
        return json.dumps(ids)

    @asynccontextmanager
    async def elect(self) -> AsyncIterator[Election]:
        """Elect this process: the write gate and SQLite's own lock exclude every other one."""
        yield Election()

    async def make_partitions(self) -> Sequence[str]:
        """Do nothing: SQLite has no partitions."""
        return ()

    async def expired_weeks(self, before: datetime, *, with_default: bool = False) -> list[Week]:
        """Return the weeks, oldest first, that ended before a time and have payloads to drop."""
        del with_default  # a file has no partitions
        expired = Week.of(before).starts_at
        page: dict[str, object] = {"before": self._stored_time(expired)}
        weeks: set[Week] = set()
        after: int | None = 0
        while after is not None:
            (end,) = await self._read("payloads_range", after=after, limit=PAGE_PAYLOADS, **page)
            if not end["may_precede_old"]:
                break
            rows = await self._read("unneeded_payloads", after=after, last=end["last"], **page)
            weeks |= {Week.of(row["received_at"]) for row in rows}
            after = end["last"] if end["rows"] == PAGE_PAYLOADS else None
        return await self._without_restored(sorted(weeks), before)

    async def drop_payloads(
        self, week: Week, action: OperatorAction, *, must_be_archived: bool = False
    ) -> DroppedPayloads:
        """Delete the payloads of a week, except those that a queued or failed job needs.

        Raise NotArchived if all must be in recorded files and one is not.
        """
        page = {
            "start": self._stored_time(week.starts_at),
            "before": self._stored_time(week.ends_at),
        }
        dropped = 0
        after: int | None = 0
        while after is not None:
            async with self._transaction(Lock.LEDGER) as transaction:
                (end,) = await transaction.run(
                    "payloads_range", after=after, limit=PAGE_PAYLOADS, before=page["before"]
                )
                if not end["may_precede_old"]:
                    break
                if must_be_archived:
                    await require_archived(transaction, week)
                gone = await transaction.run(
                    "purge_payloads", after=after, last=end["last"], **page
                )
                if gone and not dropped:
                    subject = f"payloads:{week.label}"
                    await add_audit_entry(transaction, action, PURGE_ACTION, subject)
                self._failpoints.reach("purge.written")
            self._failpoints.reach("purge.committed")
            dropped += len(gone)
            after = end["last"] if end["rows"] == PAGE_PAYLOADS else None
        return DroppedPayloads(dropped, None)

    async def expired_audit(self, before: datetime) -> list[str]:
        """Return the whole audit trail if it has entries from before a time."""
        time = self._stored_time(before)
        has_old = await self._commit(
            lambda connection: connection.execute(_OLD_ENTRIES, (time,)).fetchone()[0]
        )
        return [_TRAIL] if has_old else []

    async def drop_audit(self, part: str, before: datetime, action: OperatorAction) -> None:
        """Delete the entries of the audit trail from before a time, behind its horizon."""
        time = self._stored_time(before)

        def purge_page(connection: sqlite3.Connection) -> int:
            connection.execute(_MOVE_AUDIT_HORIZON, (time,))
            return connection.execute(_PURGE_AUDIT, (time, PAGE_PAYLOADS)).rowcount

        async with self._transaction(Lock.LEDGER) as transaction:
            await add_audit_entry(transaction, action, PURGE_ACTION, part)
        while await self._commit(purge_page):
            pass

    async def release_space(self) -> None:
        """Give free pages back to the file system, a few at a time.

        Files that were created before this was possible keep them for new rows.
        """
        for _ in range(MAX_VACUUMS):
            if not await self._commit(_vacuum):
                return


def _vacuum(connection: sqlite3.Connection) -> bool:
    """Give some free pages back. Return whether there may be more."""
    (free_before,) = connection.execute("PRAGMA freelist_count").fetchone()
    connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return 0 < int(free) < int(free_before)
