"""Put archived payloads back into the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from onceward.errors import ArchiveDamaged, ArchiveUnavailable, NotFound
from onceward.model.admin import OperatorAction
from onceward.model.archive import ArchivedEvent, ArchiveQuery, DamagedFile, EventKey, Restored
from onceward.model.weeks import Week
from onceward.operate.archive_files import find_event, list_files
from onceward.operate.maintenance import MAX_PAUSE_SECONDS
from onceward.ports.archive import ArchiveStore, PayloadArchive
from onceward.runtime.clock import Clock, SystemClock

RESTORE_EVENTS: Final = 200
RESTORE_BYTES: Final = 2 * 1024 * 1024
"""The limits of one transaction: on SQLite, nothing is received meanwhile."""
PAUSES_PER_BATCH: Final = 1
"""The pause after a transaction, in units of the time that it took.

On SQLite the receiver is another process, which asks for the lock up to 100 ms apart.
"""

Progress = Callable[[Restored], object]


def ignore_progress(_: Restored) -> None:
    """Show nothing."""


async def restore_week(
    store: ArchiveStore,
    archive: PayloadArchive,
    week: Week,
    action: OperatorAction,
    *,
    key: EventKey | None = None,
    progress: Progress = ignore_progress,
    clock: Clock | None = None,
) -> Restored:
    """Put the payloads of a week, or of one event in it, back into the ledger.

    Rows of events that are gone are put back too, without jobs: nothing is queued. Each file is
    compared with its record before its first row is used: a damaged one is passed over, and listed.
    The first transaction also has the audit entry: a restore that puts nothing back leaves none.
    A run that was interrupted can be repeated: what is there is counted, and not changed. Raise
    NotFound, ArchiveUnavailable, StoreError, and what `find_event` raises.
    """
    clock = clock or SystemClock()
    if key is not None:
        found = await find_event(store, archive, key, week)
        restored = Restored(damaged=found.damaged)
        return restored.plus(await store.restore_events(week, [found.event], action))
    restored = Restored()
    files = [file async for file in list_files(store, ArchiveQuery(week=week))]
    if not files:
        raise NotFound(f"No file of the week {week} is recorded. Nothing was restored.")
    for file in files:
        try:
            async with aclosing(archive.read(file)) as pages:
                async for page in pages:
                    async for batch in _paced(_batches(page), clock):
                        is_first = restored.audit_entry is None
                        restored = restored.plus(
                            await store.restore_events(week, batch, action if is_first else None)
                        )
                        progress(restored)
        except ArchiveDamaged as error:
            restored = restored.plus(Restored(damaged=(DamagedFile(file.path, str(error)),)))
        except ArchiveUnavailable as error:
            raise ArchiveUnavailable(f"{error} {_until_then(restored)}") from error
    return restored


async def _paced(
    batches: Iterator[list[ArchivedEvent]], clock: Clock
) -> AsyncIterator[list[ArchivedEvent]]:
    """Yield batches, and pause after the transaction of each, so that others get the database."""
    for batch in batches:
        started = clock.monotonic()
        yield batch
        pause = PAUSES_PER_BATCH * (clock.monotonic() - started)
        await _pause(min(pause, MAX_PAUSE_SECONDS))


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _until_then(restored: Restored) -> str:
    """Return what a restore that failed has put back."""
    if restored.audit_entry is None:
        return "Nothing was restored."
    return (
        f"{restored.payloads} payloads were restored before it failed; repeat the restore for the "
        "others."
    )


def _batches(page: Sequence[ArchivedEvent]) -> Iterator[list[ArchivedEvent]]:
    batch: list[ArchivedEvent] = []
    size = 0
    for event in page:
        if batch and (len(batch) >= RESTORE_EVENTS or size + len(event.body) > RESTORE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += len(event.body)
    if batch:
        yield batch
