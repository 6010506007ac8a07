"""Retention: the tables that are purged, the progress of a purge, and the election."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

import msgspec


class Purgeable(StrEnum):
    """The tables whose old rows are deleted in batches, in the order of a purge."""

    REJECTIONS = "rejections"
    DELIVERIES = "deliveries"
    ATTEMPTS = "attempts"
    JOBS = "jobs"
    EFFECTS = "effects"
    EVENTS = "events"


class PurgeProgress(msgspec.Struct, frozen=True):
    """The number of rows deleted, and the position to continue after; None at the end."""

    rows: int
    next: int | None


class DroppedPayloads(msgspec.Struct, frozen=True):
    """The payloads of a week that were dropped, and those that a job still needs."""

    dropped: int | None
    """Their number; None if a whole partition was dropped without counting."""
    kept: int | None
    """Their number; None if they were not counted."""


class UnfinishedJob(msgspec.Struct, frozen=True):
    """A queued or failed job. The payload of its event and the effects of its time are kept."""

    id: int
    handler: str
    status: str
    received_at: datetime
    """When its event was received."""

    def __str__(self) -> str:
        received = f"{self.received_at.astimezone(UTC):%Y-%m-%d}"
        return f"job {self.id} of {self.handler!r} ({self.status}, received {received})"


class Election(msgspec.Struct, frozen=True):
    """Whether this process does the maintenance now, or why it does not."""

    reason: str = ""
    """Why it does not: another process does it, or the role does not own the tables."""
    is_elsewhere: bool = False
    """Whether another process does it now."""

    @property
    def is_elected(self) -> bool:
        """Whether this process does the maintenance."""
        return not self.reason
