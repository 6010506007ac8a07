"""What has to be done from time to time, whether anybody works or not."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from onceward.errors import StoreError
from onceward.redact import redact

_log = logging.getLogger("onceward.upkeep")

EVERY_SECONDS: Final = 3600.0
AGAIN_SECONDS: Final = 60.0


class Kept(Protocol):
    """What wants upkeep."""

    async def upkeep(self) -> None:
        """Do what has to be done from time to time."""


async def keep(store: Kept) -> None:
    """Do the store's upkeep every hour. Every process does: doing it twice is harmless."""
    while True:
        pause = EVERY_SECONDS
        try:
            await store.upkeep()
        except StoreError as error:
            pause = AGAIN_SECONDS
            _log.warning("upkeep will be tried again in a minute: %s", redact(str(error)))
        await asyncio.sleep(pause)
