"""The protocol of what time does to the ledger: partitions, and the purge of what is old."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from onceward.model.admin import OperatorAction
from onceward.model.retention import (
    DroppedPayloads,
    Election,
    Purgeable,
    PurgeProgress,
    UnfinishedJob,
)
from onceward.model.weeks import Week


class MaintenanceStore(Protocol):
    """Ages the ledger. Every step is safe to run twice, and concurrently."""

    def elect(self) -> AbstractAsyncContextManager[Election]:
        """Try to become the only process that does the maintenance, until the context ends."""

    async def ledger_time(self) -> datetime:
        """Return the time on the clock of the ledger."""

    async def unfinished_jobs(self, before: datetime, limit: int) -> list[UnfinishedJob]:
        """Return the oldest queued and failed jobs of events that are from before a time."""

    async def make_partitions(self) -> Sequence[str]:
        """Create the partitions of the time ahead, and move what was recorded without one.

        Return the names of the new partitions.
        """

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

    async def expired_weeks(self, before: datetime, *, with_default: bool = False) -> list[Week]:
        """Return the weeks, oldest first, that ended before a time and have payloads to drop.

        A week that was restored since that time is left out. `with_default` adds those that have
        no partition yet.
        """

    async def count_payloads(self, week: Week) -> tuple[int, int]:
        """Return how many payloads of a week would be dropped, and how many a job needs."""

    async def drop_payloads(
        self, week: Week, action: OperatorAction, *, must_be_archived: bool = False
    ) -> DroppedPayloads:
        """Drop the payloads of a week, except those that a queued or failed job needs.

        Raise NotArchived if all must be in recorded files and one is not, and StoreBlocked if
        another transaction uses the table for long.
        """

    async def expired_audit(self, before: datetime) -> list[str]:
        """Return the parts of the audit trail, oldest first, that have entries to drop."""

    async def drop_audit(self, part: str, before: datetime, action: OperatorAction) -> None:
        """Drop a part of the audit trail, with its entries from before a time."""

    async def release_space(self) -> None:
        """Give the space of deleted rows back to the file system, as far as this is cheap."""
