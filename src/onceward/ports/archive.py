"""The ports of the archive: its files, and the ledger's records of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from onceward.model.admin import AuditItem, OperatorAction
from onceward.model.archive import (
    ArchivedEvent,
    ArchiveFile,
    ArchiveItem,
    ArchivePosition,
    ArchiveQuery,
    EventKey,
    Restored,
)
from onceward.model.weeks import Week


class PayloadArchive(Protocol):
    """The files of archived payloads. Every method may raise ArchiveError."""

    location: str
    """Where the files are, as the setting names it."""

    async def write(
        self, week: Week, part: int, pages: AsyncIterator[Sequence[ArchivedEvent]]
    ) -> ArchiveFile:
        """Write events, in ascending order of their ids, to a new file; read it back and verify it.

        There must be at least one event. No more than one page is in memory at a time.
        """

    async def verify(self, file: ArchiveFile) -> None:
        """Read a file and compare it with its record. Raise ArchiveDamaged if they differ."""

    async def check(self, file: ArchiveFile) -> None:
        """Compare the bytes of a file with its record, before payloads are dropped because of it.

        Raise ArchiveDamaged if they differ.
        """

    def read(
        self, file: ArchiveFile, key: EventKey | None = None
    ) -> AsyncGenerator[list[ArchivedEvent], None]:
        """Yield the events of a file, or the one with this key, after comparing its hash."""


class ArchiveStore(Protocol):
    """The records of archived files, and the payloads that are archived and restored."""

    async def archive_position(self, week: Week) -> ArchivePosition:
        """Return where the archiving of a week continues."""

    async def archive_page(
        self, week: Week, after: int, *, limit: int, max_bytes: int
    ) -> list[ArchivedEvent]:
        """Return events of a week that have a payload and an id above `after`, in ascending order.

        Their bodies have at most `max_bytes` in total, unless there is only one event.
        """

    async def add_archive(self, file: ArchiveFile) -> ArchiveItem | None:
        """Record a verified file. Return None if another archiver recorded the same part."""

    async def archives(self, query: ArchiveQuery) -> list[ArchiveItem]:
        """Return a page of recorded files, in the order of weeks and parts."""

    async def has_unarchived(self, week: Week) -> bool:
        """Return whether a payload of the week is in no recorded file."""

    async def find_event_id(self, key: EventKey) -> int | None:
        """Return the id of an event in the ledger; None if it is not there."""

    async def set_archive_verified(self, archive: int) -> None:
        """Store that a recorded file was read and compared again."""

    async def audit_archive_read(self, subject: str, action: OperatorAction) -> AuditItem:
        """Record that an operator reads an archived body."""

    async def restore_events(
        self, week: Week, events: Sequence[ArchivedEvent], action: OperatorAction | None
    ) -> Restored:
        """Put payloads of a week back, in one transaction, with the rows of events that are gone.

        With an `action`, also record that the week is restored, and add the audit entry. No job is
        created. Skip an event whose id or key belongs to another event now.
        """
