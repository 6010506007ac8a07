"""Periodic maintenance of the store: its intervals, and the purge of old events."""

from __future__ import annotations

import logging
from typing import Final

from onceward.ports import Store
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.retention")

MAINTENANCE_INTERVAL_SECONDS: Final = 3600.0
PURGE_INTERVAL_SECONDS: Final = 3600.0
PURGE_BATCH_EVENTS: Final = 1_000
_DAY_SECONDS: Final = 86_400.0


async def purge(store: Store, dedupe_window_days: int) -> None:
    """Delete events older than the dedupe window, in batches. A window of 0 keeps every event."""
    if not dedupe_window_days:
        return
    purged = 0
    position: int | None = 0
    while position is not None:
        progress = await store.purge_events(
            position,
            limit=PURGE_BATCH_EVENTS,
            horizon_seconds=dedupe_window_days * _DAY_SECONDS,
        )
        purged += progress.events
        position = progress.next
    if purged:
        message = "%d events purged: older than %d days"
        _log.info(message, purged, dedupe_window_days, extra=LogFields(count=purged))
