"""The records of archived files, and payloads that are archived and restored, on both stores."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from onceward.errors import NotArchived
from onceward.model.admin import AuditItem, OperatorAction
from onceward.model.archive import (
    ArchivedEvent,
    ArchiveFile,
    ArchiveItem,
    ArchivePosition,
    ArchiveQuery,
    EventKey,
    Restored,
    SkippedEvent,
)
from onceward.model.events import ProcessingState
from onceward.model.weeks import Week
from onceward.ports import Row
from onceward.runtime.time_units import epoch_microseconds
from onceward.store.audit import add_audit_entry
from onceward.store.base import BaseStore, LedgerTransaction
from onceward.store.locks import Lock


class SqlArchives(BaseStore):
    """The port `ArchiveStore`."""

    async def archive_position(self, week: Week) -> ArchivePosition:
        """Return where the archiving of a week continues."""
        (row,) = await self._read("archive_position", **week_parameters(week))
        return ArchivePosition(row["next_part"], row["last_event"], bool(row["is_over"]))

    async def archive_page(
        self, week: Week, after: int, *, limit: int, max_bytes: int
    ) -> list[ArchivedEvent]:
        """Return events of a week that have a payload and an id above `after`, in ascending order.

        Their bodies have at most `max_bytes` in total, unless there is only one event.
        """
        rows = await self._read(
            "archive_page",
            **week_parameters(week),
            after=after,
            limit=limit,
            max_bytes=max_bytes,
        )
        return [_archived_event(row) for row in rows]

    async def add_archive(self, file: ArchiveFile) -> ArchiveItem | None:
        """Record a verified file. Return None if another archiver recorded the same part."""
        facts = structs.asdict(file)
        async with self._transaction(Lock.LEDGER) as transaction:
            rows = await transaction.run("add_archive", **{**facts, "week": file.week.label})
        return ArchiveItem(**facts, **rows[0]) if rows else None

    async def archives(self, query: ArchiveQuery) -> list[ArchiveItem]:
        """Return a page of recorded files, in the order of weeks and parts."""
        filters = {"week": query.week, "event": query.event, "after": query.after or None}
        rows = await self._read(
            "archives_page",
            *(name for name, value in filters.items() if value is not None),
            week=query.week and query.week.label,
            event=query.event,
            after=query.after,
            limit=query.limit,
        )
        return [_archive_item(row) for row in rows]

    async def has_unarchived(self, week: Week) -> bool:
        """Return whether a payload of the week is in no recorded file."""
        (row,) = await self._read("has_unarchived", **week_parameters(week))
        return bool(row["has_unarchived"])

    async def find_event_id(self, key: EventKey) -> int | None:
        """Return the id of an event in the ledger; None if it is not there."""
        rows = await self._read("find_event_id", source=key.source, event_id=key.event_id)
        return rows[0]["id"] if rows else None

    async def set_archive_verified(self, archive: int) -> None:
        """Store that a recorded file was read and compared again."""
        async with self._transaction(Lock.LEDGER) as transaction:
            await transaction.run("set_archive_verified", id=archive)

    async def audit_archive_read(self, subject: str, action: OperatorAction) -> AuditItem:
        """Record that an operator reads an archived body."""
        async with self._transaction(Lock.LEDGER) as transaction:
            return await add_audit_entry(transaction, action, "read_archive", subject)

    async def restore_events(
        self, week: Week, events: Sequence[ArchivedEvent], action: OperatorAction | None
    ) -> Restored:
        """Put payloads of a week back, in one transaction, with the rows of events that are gone.

        With an `action`, also record that the week is restored, and add the audit entry. No job is
        created. Skip an event whose id or key belongs to another event now.
        """
        restored = Restored()
        async with self._transaction(Lock.LEDGER) as transaction:
            if action is not None:
                await transaction.run("start_restore", week=week.label)
                entry = await add_audit_entry(
                    transaction, action, "restore_archive", f"archive:{week}"
                )
                restored = Restored(audit_entry=entry)
            for event in events:
                restored = restored.plus(await _restore(transaction, event))
        return restored


async def require_archived(transaction: LedgerTransaction, week: Week) -> None:
    """Raise NotArchived if a payload of a week is in no recorded file."""
    (row,) = await transaction.run("has_unarchived", **week_parameters(week))
    if row["has_unarchived"]:
        raise NotArchived(
            f"The week {week} has payloads that are in no recorded file of the archive. Nothing "
            "was dropped; the next maintenance archives them first"
        )


async def restore_advice(
    transaction: LedgerTransaction, event: int, key: EventKey, week: Week, *, then: str
) -> str:
    """Return how to put back the payload of an event, if a recorded file has it.

    `then` is what the operator wanted to do.
    """
    rows = await transaction.run(
        "archives_page", "week", "event", week=week.label, event=event, after=0, limit=1
    )
    if not rows:
        return "No recorded file of the archive has it, so that no handler can run."
    # A text that a terminal would not show as it is must not be pasted into one.
    name = str(key)
    only = f" --event {shlex.quote(name)}" if name.isprintable() else ""
    return (
        f"Put it back first, then {then} again: "
        f"onceward archive restore {week}{only} --actor NAME --reason TEXT"
    )


def week_parameters(week: Week) -> dict[str, Any]:
    """Return the parameters by which statements name a week."""
    starts, ends = week.starts_at.timestamp(), week.ends_at.timestamp()
    return {"week": week.label, "starts": int(starts), "ends": int(ends)}


async def _restore(transaction: LedgerTransaction, event: ArchivedEvent) -> Restored:
    key = {"id": event.id, "source": event.source, "event_id": event.event_id}
    is_new = not await transaction.run("is_same_event", **key)
    if is_new and not await _restore_row(transaction, event, key):
        # Asked again: recording takes no lock, and may have used the key since.
        (other,) = await transaction.run("is_other_event", **key)
        taken = "event id" if other["has_key"] else "ledger id"
        reason = f"another event has its {taken} now"
        return Restored(skipped_count=1, skipped=(SkippedEvent(event.id, event.key, reason),))
    rows = await transaction.run("restore_payload", **key, headers=event.headers, body=event.body)
    if not rows:
        return Restored(present=1)
    return Restored(payloads=1, events=int(is_new))


async def _restore_row(
    transaction: LedgerTransaction, event: ArchivedEvent, key: dict[str, Any]
) -> bool:
    """Put back the row of an event. Return False if another event has its id or its key."""
    (other,) = await transaction.run("is_other_event", **key)
    if other["has_key"] or other["has_id"]:
        return False
    return bool(await transaction.run("restore_event", **_event_parameters(event)))


def _event_parameters(event: ArchivedEvent) -> dict[str, Any]:
    """Return every fact of an event that its row may hold."""
    processed_at = event.processed_at
    return {
        "id": event.id,
        "source": event.source,
        "event_id": event.event_id,
        "type": event.type,
        "reference": event.reference,
        "received_us": epoch_microseconds(event.received_at),
        "body_sha256": event.body_sha256,
        "deliveries": event.deliveries,
        "conflicts": event.conflicts,
        "routed": event.routed,
        "processing_state": event.processing_state,
        "processed_us": None if processed_at is None else epoch_microseconds(processed_at),
    }


def _archived_event(row: Row) -> ArchivedEvent:
    typed = {
        "processing_state": ProcessingState(row["processing_state"]),
        "routed": bool(row["routed"]),
    }
    return ArchivedEvent(**{**row, **typed})


def _archive_item(row: Row) -> ArchiveItem:
    week = Week.parse(row["week"])
    if week is None:
        raise ValueError(f"archives.week is {row['week']!r}, which is no week")
    return ArchiveItem(**{**row, "week": week})
