"""Stale events: those that are older than what their key has already applied."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from onceward.errors import PermanentError, StaleEvent
from onceward.model.jobs import Job
from onceward.model.versions import Version, Watermark
from onceward.ports import Queue, StoreTransaction
from onceward.work.definition.versions import VersionRule, read_version

_SHOWN_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class VersionedJob:
    """A job whose event has a version. It is applied unless its key has applied a newer one."""

    handler: str
    path: str
    """The path of the version, for messages."""
    key: str
    watermark: Watermark
    """The version that the key has applied once this job is done, unless a newer one was."""
    even_if_stale: bool
    even_if_stale_at: datetime | None = None
    """When an operator said so; None if an earlier version of Onceward stored it."""

    async def require_fresh(self, queue: Queue) -> None:
        """Raise StaleEvent if the event is stale now, before anything is done for it.

        Raise PermanentError if the two versions cannot be compared, also for a job that runs even
        if stale: it could not be applied in the end.
        """
        applied = await queue.watermark(self.handler, self.key)
        if applied is not None and self._is_stale(applied) and not self._overrides(applied):
            raise StaleEvent(_reason(self.watermark, applied))

    async def advance_watermark(self, transaction: StoreTransaction) -> None:
        """Write the version in the transaction of the job. Raise StaleEvent if it is stale.

        No other job can advance the same watermark before the transaction ends. The watermark of a
        job that runs even if stale never goes back.
        """
        applied = await transaction.lock_watermark(self.handler, self.key, self.watermark)
        if self._is_stale(applied):
            if not self._overrides(applied):
                raise StaleEvent(_reason(self.watermark, applied))
        elif applied != self.watermark:
            await transaction.set_watermark(self.handler, self.key, self.watermark)

    def _overrides(self, applied: Watermark) -> bool:
        """Return whether an operator wants the job applied over this version.

        Operators know what was applied before they acted, and nothing of what came later.
        """
        if self.even_if_stale_at is None or applied.applied_at is None:
            return self.even_if_stale
        return self.even_if_stale and applied.applied_at <= self.even_if_stale_at

    def _is_stale(self, applied: Watermark) -> bool:
        """Return whether the event is older. Raise PermanentError if the two cannot be compared."""
        if self.watermark.is_number != applied.is_number:
            raise PermanentError(
                f"version {self.path} is {_kind(self.watermark)}, but event "
                f"{_shown(applied.event_id)} had {_kind(applied)} for the same version_key; the "
                "versions of a key must be all numbers or all texts: if the sender changed the "
                "kind for good, forget the watermark, then requeue"
            )
        return self.watermark.is_older_than(applied)


def make_versioned(rule: VersionRule, job: Job, body: bytes) -> VersionedJob:
    """Return a job with its version. Raise PermanentError if the payload has no usable one."""
    key, watermark = read_version(rule, job, body)
    is_wanted, wanted_at = bool(job.even_if_stale), job.even_if_stale_at
    return VersionedJob(job.handler, rule.version, key, watermark, is_wanted, wanted_at)


def _reason(stale: Watermark, applied: Watermark) -> str:
    """Return why an event is stale. Versions and ids are identifiers, and shown up to a length."""
    version, event = _shown(stale.version), _shown(applied.event_id)
    if stale.version != applied.version:
        return (
            f"stale: version {version} is older than {_shown(applied.version)}, "
            f"which event {event} applied"
        )
    decided_by = "id" if stale.event_id != applied.event_id else "source"
    return f"stale: event {event} applied the same version {version} and wins by its {decided_by}"


def _kind(watermark: Watermark) -> str:
    return "a number" if watermark.is_number else "a text"


def _shown(value: Version) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
