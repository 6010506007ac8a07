"""Background tasks that repeat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from onceward.errors import StoreError
from onceward.runtime.redact import redact

_log = logging.getLogger("onceward.runtime")


RETRY_SECONDS: Final = 60.0


async def repeat(task: Callable[[], Awaitable[object]], every_seconds: float) -> None:
    """Do something now and every so often. Every process does: doing it twice is harmless."""
    while True:
        pause = every_seconds
        try:
            await task()
        except StoreError as error:
            pause = min(every_seconds, RETRY_SECONDS)
            _log.warning("upkeep will be tried again: %s", redact(str(error)))
        await asyncio.sleep(pause)
