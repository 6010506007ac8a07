"""Archive the payloads of a week before they are dropped."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from onceward.errors import NotInState
from onceward.model.archive import ArchivedEvent, ArchiveItem, ArchivePosition
from onceward.model.weeks import Week
from onceward.ports.archive import ArchiveStore, PayloadArchive
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.archive")

PART_EVENTS: Final = 50_000
PART_BYTES: Final = 64 * 1024 * 1024
"""The limits of a file: events, and bytes of their bodies. A larger body has a file of its own."""
PAGE_EVENTS: Final = 1_000
PAGE_BYTES: Final = 4 * 1024 * 1024
"""The limits of one read, and so of the bodies that are in memory."""

Progress = Callable[[ArchiveItem], object]


def ignore_progress(_: ArchiveItem) -> None:
    """Show nothing."""


async def archive_week(
    store: ArchiveStore,
    archive: PayloadArchive,
    week: Week,
    progress: Progress = ignore_progress,
    *,
    failpoints: Failpoints | None = None,
) -> None:
    """Write every payload of a week to verified and recorded files. Resume after the last of them.

    A file is recorded after it was read back and compared: a process that dies before that leaves
    a file that no record names, and the next run writes another one. Raise NotInState if the week
    is not over, ArchiveError, and StoreError.
    """
    failpoints = failpoints or Failpoints()
    while True:
        position = await store.archive_position(week)
        if not position.is_over:
            message = f"The week {week} is not over. It can be archived from an hour after its end."
            raise NotInState(message)
        part = _Part(store, week, position)
        if not await part.load():
            return
        file = await archive.write(week, position.next_part, part.pages())
        if (item := await store.add_archive(file)) is None:
            continue  # another archiver recorded this part first; its file counts
        failpoints.reach("archive.recorded")
        _log.info(
            "%d payloads of the week %s archived to %s",
            *(item.rows, week, item.path),
            extra=LogFields(count=item.rows),
        )
        progress(item)


class _Part:
    """The events of the next file of a week, read page by page."""

    def __init__(self, store: ArchiveStore, week: Week, position: ArchivePosition) -> None:
        self._store = store
        self._week = week
        self._last = position.last_event
        self._events_left = PART_EVENTS
        self._bytes_left = PART_BYTES
        self._page: Sequence[ArchivedEvent] = ()

    async def load(self) -> bool:
        """Load the first page. Return False if there is no event left."""
        self._page = await self._next_page()
        return bool(self._page)

    async def pages(self) -> AsyncIterator[Sequence[ArchivedEvent]]:
        """Yield the loaded page and those that follow, up to the limits of a file."""
        while self._page:
            yield self._page
            self._page = await self._next_page() if self._has_room() else ()

    async def _next_page(self) -> Sequence[ArchivedEvent]:
        page = await self._store.archive_page(
            self._week,
            self._last,
            limit=min(PAGE_EVENTS, self._events_left),
            max_bytes=min(PAGE_BYTES, self._bytes_left),
        )
        size = sum(len(event.body) for event in page)
        # A page has at least one event; the file may have no room for its body any more.
        if not page or (size > self._bytes_left and self._events_left < PART_EVENTS):
            return ()
        self._last = page[-1].id
        self._events_left -= len(page)
        self._bytes_left -= size
        return page

    def _has_room(self) -> bool:
        return self._events_left > 0 and self._bytes_left > 0
