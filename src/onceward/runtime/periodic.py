"""Background tasks that repeat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from onceward.errors import NewerSchema, StoreError
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
        except BaseException as error:
            if not _is_failure(error):
                raise
            pause = min(interval_seconds, RETRY_SECONDS)
            _report(getattr(task, "__name__", "").strip("_"), error, pause)
        await asyncio.sleep(pause)


def _is_failure(error: BaseException) -> bool:
    """Return whether an error is the task's own, and not the end of its repetition.

    A CancelledError may come from something that the task awaited and that was cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        current = asyncio.current_task()
        return current is not None and not current.cancelling()
    return isinstance(error, Exception)


def _report(name: str, error: BaseException, pause: float) -> None:
    if isinstance(error, NewerSchema):
        return  # no task can go on, and recording and claiming log it
    is_outage = isinstance(error, StoreError)
    level = logging.WARNING if is_outage else logging.ERROR
    reason = redact(str(error)) if is_outage else locate(error)
    message = "background task %r failed; retrying in %s s: %s"
    fields = LogFields(task=name, retry_in_seconds=pause, error=reason)
    _log.log(level, message, name, seconds_text(pause), reason, extra=fields)
