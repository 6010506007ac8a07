"""What has to be done from time to time, whether anybody works or not."""

from __future__ import annotations

import logging
from typing import Final

from onceward.ports import Store

_log = logging.getLogger("onceward.upkeep")

STORE_EVERY_SECONDS: Final = 3600.0
REGISTER_EVERY_SECONDS: Final = 60.0
DAY_SECONDS: Final = 86_400.0
PART_EVENTS: Final = 1_000


async def purge(store: Store, dedupe_window_days: int) -> None:
    """Forget events that nobody can send again, a part of the ledger at a time."""
    after: int | None = 0
    forgotten = 0
    while dedupe_window_days and after is not None:
        part = await store.purge_events(
            after, limit=PART_EVENTS, horizon_seconds=dedupe_window_days * DAY_SECONDS
        )
        forgotten += part.events
        after = part.next
    if forgotten:
        _log.info("%d events older than %d days are forgotten", forgotten, dedupe_window_days)
