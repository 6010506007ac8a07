"""Background tasks that repeat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from onceward.errors import StoreError
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.runtime.redact import redact

_log = logging.getLogger("onceward.runtime")

RETRY_SECONDS: Final = 60.0
"""The longest pause after a StoreError."""


async def repeat(task: Callable[[], Awaitable[object]], interval_seconds: float) -> None:
    """Run `task` now and after every interval.

    Every process repeats its tasks, so a task must be safe to run concurrently.
    """
    while True:
        pause = interval_seconds
        try:
            await task()
        except StoreError as error:
            pause = min(interval_seconds, RETRY_SECONDS)
            name = getattr(task, "__name__", "").strip("_")
            reason = redact(str(error))
            message = "background task %r failed; retrying in %s s: %s"
            fields = LogFields(task=name, retry_in_seconds=pause, error=reason)
            _log.warning(message, name, seconds_text(pause), reason, extra=fields)
        await asyncio.sleep(pause)
