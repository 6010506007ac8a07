"""A warning about async handlers that block the event loop."""

from __future__ import annotations

import logging
import math
from typing import Final

from onceward.runtime.clock import Clock
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.work")

BLOCKED_SECONDS: Final = 0.25
"""How long a handler may run without an await that yields to the event loop."""

WARNING_INTERVAL_SECONDS: Final = 60.0


class LoopWatch:
    """Warns when one handler blocks the event loop, at most once in an interval."""

    def __init__(self, handler: str, clock: Clock, *, label: str) -> None:
        self._handler = handler
        self.label = label
        self.monotonic = clock.monotonic
        self._warned_at = -math.inf

    def warn(self, seconds: float) -> None:
        """Log that the handler blocked the event loop, unless a warning was logged recently."""
        now = self.monotonic()
        if now - self._warned_at < WARNING_INTERVAL_SECONDS:
            return
        self._warned_at = now
        _log.warning(
            "%s blocked the event loop for %.1f s; webhooks and other jobs waited. Use a sync `def`"
            " handler, which runs in a thread, or an async library.",
            self.label,
            seconds,
            extra=LogFields(handler=self._handler, seconds=round(seconds, 1)),
        )
