"""Background tasks that repeat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from onceward.errors import StoreError
from onceward.runtime.error_text import locate
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.runtime.redact import redact

_log = logging.getLogger("onceward.runtime")

RETRY_SECONDS: Final = 60.0
"""The longest pause after an error."""


async def repeat(task: Callable[[], Awaitable[object]], interval_seconds: float) -> None:
    """Run `task` now and after every interval. An error is logged and ends nothing.

    Every process repeats its tasks, so a task must be safe to run concurrently.
    """
    while True:
        pause = interval_seconds
        try:
            await task()
        except Exception as error:  # noqa: BLE001 - a task that ends would be missed by nobody
            pause = min(interval_seconds, RETRY_SECONDS)
            is_outage = isinstance(error, StoreError)
            level = logging.WARNING if is_outage else logging.ERROR
            name = getattr(task, "__name__", "").strip("_")
            reason = redact(str(error)) if is_outage else locate(error)
            message = "background task %r failed; retrying in %s s: %s"
            fields = LogFields(task=name, retry_in_seconds=pause, error=reason)
            _log.log(level, message, name, seconds_text(pause), reason, extra=fields)
        await asyncio.sleep(pause)
