"""Calls of handlers that still run although their attempt ended, and the pause that they cause.

A thread cannot be stopped, and a coroutine can ignore its cancellation. Each such call keeps its
memory and its connections, so a handler that leaves too many of them starts no more jobs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Final

from onceward.runtime.clock import Clock
from onceward.runtime.log_fields import LogFields
from onceward.work.definition.handlers import Handler

_log = logging.getLogger("onceward.work")

REPORT_INTERVAL_SECONDS: Final = 60.0

_SYNC_ADVICE: Final = "Set timeouts on the calls that it makes"
_ASYNC_ADVICE: Final = "Let it end when it is cancelled, without catching CancelledError"


class PauseMode(Enum):
    """The way in which a paused handler gets its events: it decides the advice in the log."""

    BACKGROUND = "Its jobs stay queued", "timeout_seconds"
    INLINE = "Senders get 503 for its events", "inline_timeout_seconds"
    BOTH = (
        "Its jobs stay queued, and the senders of inline sources get 503",
        "timeout_seconds and inline_timeout_seconds",
    )


@dataclass(slots=True)
class _Calls:
    count: int = 0
    reported_at: float = -math.inf
    is_reported: bool = False


class AbandonedCalls:
    """The abandoned calls of each handler. At `limit` calls, a handler is paused."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        limit: int,
        clock: Clock,
        modes: Mapping[str, PauseMode] = MappingProxyType({}),
    ) -> None:
        self._handlers = handlers
        self._modes = modes
        self._limit = limit
        self._monotonic = clock.monotonic
        self._now = clock.now
        self._calls = {name: _Calls() for name in handlers}
        self.paused: set[str] = set()
        """The handlers that start no more jobs."""
        self._paused_at: dict[str, datetime] = {}
        self.on_resume: Callable[[], object] = lambda: None

    @property
    def paused_since(self) -> dict[str, datetime]:
        """The paused handlers, each with the time at which its pause began."""
        return dict(self._paused_at)

    def add(self, handler: str) -> None:
        """Count a call that was abandoned, and pause its handler at the limit."""
        calls = self._calls[handler]
        calls.count += 1
        if calls.count >= self._limit and handler not in self.paused:
            self.paused.add(handler)
            self._paused_at[handler] = datetime.fromtimestamp(self._now(), UTC)

    def remove(self, handler: str) -> None:
        """Count a call that has ended after all, and resume its handler below the limit."""
        calls = self._calls[handler]
        calls.count -= 1
        if handler not in self.paused or calls.count >= self._limit:
            return
        self.paused.remove(handler)
        del self._paused_at[handler]
        if calls.is_reported:
            calls.is_reported = False
            label = self._handlers[handler].label
            fields = LogFields(handler=handler, count=calls.count)
            message = "%s resumes: one of its timed-out calls has ended, and %d still run"
            _log.info(message, label, calls.count, extra=fields)
        self.on_resume()

    def report(self) -> None:
        """Log each paused handler, at most once in an interval."""
        if not self.paused:
            return
        now = self._monotonic()
        for name in sorted(self.paused):
            calls = self._calls[name]
            if now - calls.reported_at >= REPORT_INTERVAL_SECONDS:
                calls.reported_at, calls.is_reported = now, True
                self._log_pause(self._handlers[name], calls.count)

    def _log_pause(self, handler: Handler, count: int) -> None:
        consequence, limit = self._modes.get(handler.name, PauseMode.BACKGROUND).value
        _log.error(
            "%s is paused: %d of its timed-out calls still run, and `workers` allows %d. %s, and "
            "it resumes when a call ends. %s, or raise %s; a call that never ends needs a restart "
            "of this process",
            handler.label,
            count,
            self._limit,
            consequence,
            _ASYNC_ADVICE if handler.is_async else _SYNC_ADVICE,
            limit,
            extra=LogFields(handler=handler.name, count=count),
        )
