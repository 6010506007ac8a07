"""The archive: weeks of payloads, the files that hold them, and their restoration."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from onceward.model.admin import AuditItem
from onceward.model.events import ProcessingState
from onceward.model.weeks import Week

MAX_LISTED_EVENTS: Final = 1_000
"""The events that a result lists; it counts the others."""


class EventKey(NamedTuple):
    """The identity of an event across all sources."""

    source: str
    event_id: str

    def __str__(self) -> str:
        return f"{self.source}:{self.event_id}"


class ArchivedEvent(msgspec.Struct, frozen=True):
    """One row of an archive file: an event with its payload, as it was when it was archived."""

    id: int
    source: str
    event_id: str
    type: str
    reference: str | None
    received_at: datetime
    body_sha256: bytes
    deliveries: int
    conflicts: int
    routed: bool
    processing_state: ProcessingState
    processed_at: datetime | None
    headers: bytes
    body: bytes

    @property
    def key(self) -> EventKey:
        """The identity of the event."""
        return EventKey(self.source, self.event_id)


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written, read back and compared with its rows."""

    week: Week
    part: int
    path: str
    """Relative to the location of the archive, so that the archive can be moved."""
    rows: int
    body_bytes: int
    file_bytes: int
    sha256: bytes
    """Of the file's bytes."""
    content_sha256: bytes
    """Of the rows; docs/archive.md says how it is computed."""
    first_event: int
    last_event: int


class ArchiveItem(ArchiveFile, frozen=True, kw_only=True):
    """A recorded file."""

    id: int
    archived_at: datetime
    verified_at: datetime
    restored_at: datetime | None


class ArchiveQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of recorded files, in the order of weeks and parts."""

    week: Week | None = None
    event: int | None = None
    """Only files whose range of ids contains this one."""
    after: int = 0
    limit: int = 100


class ArchivePosition(msgspec.Struct, frozen=True):
    """Where the archiving of a week continues."""

    next_part: int
    last_event: int
    """The last event of the recorded files; 0 if there is none."""
    is_over: bool
    """Whether no event can be received in this week any more."""


class DamagedFile(msgspec.Struct, frozen=True):
    """A recorded file that could not be used."""

    path: str
    fault: str
    """A sentence that names the file, what is wrong and what to do."""


class FoundEvent(msgspec.Struct, frozen=True):
    """An archived event, and where it was found."""

    file: ArchiveItem
    event: ArchivedEvent
    damaged: tuple[DamagedFile, ...] = ()
    """The files that were passed over before it was found."""


class SkippedEvent(msgspec.Struct, frozen=True):
    """An archived event that was not restored, and why."""

    id: int
    key: EventKey
    reason: str


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore: payloads and events put back, present, and skipped."""

    payloads: int = 0
    """Payloads that were put back."""
    events: int = 0
    """Events among them whose row was gone, and is back without jobs."""
    present: int = 0
    """Payloads that were in the ledger already."""
    skipped_count: int = 0
    skipped: tuple[SkippedEvent, ...] = ()
    """The first of the skipped events."""
    damaged: tuple[DamagedFile, ...] = ()
    """The files that were passed over. Nothing of them was restored."""
    audit_entry: AuditItem | None = None

    def plus(self, other: Restored) -> Restored:
        """Return the sum of two results."""
        return Restored(
            self.payloads + other.payloads,
            self.events + other.events,
            self.present + other.present,
            self.skipped_count + other.skipped_count,
            (self.skipped + other.skipped)[:MAX_LISTED_EVENTS],
            self.damaged + other.damaged,
            self.audit_entry or other.audit_entry,
        )
