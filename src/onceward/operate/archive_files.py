"""The recorded files of the archive: list them, find an event in them, verify them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from onceward.errors import ArchiveDamaged, NotFound
from onceward.model.admin import OperatorAction
from onceward.model.archive import (
    ArchivedEvent,
    ArchiveItem,
    ArchiveQuery,
    DamagedFile,
    EventKey,
    FoundEvent,
)
from onceward.model.weeks import Week
from onceward.ports.archive import ArchiveStore, PayloadArchive

_LIST_LIMIT: Final = 100


async def list_files(store: ArchiveStore, query: ArchiveQuery) -> AsyncIterator[ArchiveItem]:
    """Yield every recorded file that a query selects, in the order of weeks and parts."""
    after = query.after
    while page := await store.archives(replace(query, after=after, limit=_LIST_LIMIT)):
        for item in page:
            yield item
        after = page[-1].id


async def find_event(
    store: ArchiveStore, archive: PayloadArchive, key: EventKey, week: Week | None = None
) -> FoundEvent:
    """Return an archived event, of one week if given; the newest one if several have its key.

    Damaged files are passed over, and listed. Raise NotFound, ArchiveDamaged if only a damaged
    file may have the event, ArchiveUnavailable and StoreError.
    """
    event_id = await store.find_event_id(key)
    damaged: list[DamagedFile] = []
    for file in await _candidates(store, event_id, week):
        try:
            event = await _read_event(archive, file, key)
        except ArchiveDamaged as error:
            damaged.append(DamagedFile(file.path, str(error)))
            continue
        if event is not None:
            return FoundEvent(file, event, tuple(damaged))
    raise _not_found(key, event_id, week, damaged)


async def read_body(
    store: ArchiveStore, archive: PayloadArchive, key: EventKey, action: OperatorAction
) -> FoundEvent:
    """Return an archived event for a person who reads its body, after the audit entry about it.

    Raise what `find_event` raises.
    """
    found = await find_event(store, archive, key)
    await store.audit_archive_read(f"event:{found.event.id}", action)
    return found


async def verify_files(
    store: ArchiveStore, archive: PayloadArchive, query: ArchiveQuery
) -> AsyncIterator[tuple[ArchiveItem, str | None]]:
    """Read the recorded files that a query selects; yield each with its fault, or None.

    Store that a file was verified. Raise NotFound if a week has no file, ArchiveUnavailable and
    StoreError.
    """
    if query.week is not None and not await store.archives(query):
        raise NotFound(
            f"No file of the week {query.week} is recorded; `onceward archive ls` lists the weeks."
        )
    async for item in list_files(store, query):
        try:
            await archive.verify(item)
        except ArchiveDamaged as error:
            yield item, str(error)
        else:
            await store.set_archive_verified(item.id)
            yield item, None


async def check_files(store: ArchiveStore, archive: PayloadArchive, week: Week) -> None:
    """Raise ArchiveDamaged if a recorded file of a week is missing or was changed since."""
    async for file in list_files(store, ArchiveQuery(week=week)):
        await archive.check(file)


async def _candidates(
    store: ArchiveStore, event_id: int | None, week: Week | None
) -> list[ArchiveItem]:
    """Return the files that may have an event, those around its id first, then the newest.

    Without a week, an event that the ledger has is only in a file around its id.
    """
    query = ArchiveQuery(week=week, event=event_id if week is None else None)
    files = [file async for file in list_files(store, query)]
    files.reverse()
    if event_id is not None:
        files.sort(key=lambda file: not file.first_event <= event_id <= file.last_event)
    return files


async def _read_event(
    archive: PayloadArchive, file: ArchiveItem, key: EventKey
) -> ArchivedEvent | None:
    async with aclosing(archive.read(file, key)) as pages:
        async for page in pages:
            return page[-1]
    return None


def _not_found(
    key: EventKey, event_id: int | None, week: Week | None, damaged: list[DamagedFile]
) -> NotFound | ArchiveDamaged:
    if damaged:
        more = f" {len(damaged) - 1} more are damaged." if len(damaged) > 1 else ""
        return ArchiveDamaged(
            f"No intact file has the event {key}; a damaged one may. {damaged[0].fault}{more}"
        )
    if week is not None:
        return NotFound(f"No archived file of the week {week} has the event {key}.")
    under = "" if event_id is None else f" under its ledger id {event_id}"
    return NotFound(f"No archived file has the event {key}{under}.")
