"""State that all connections of a server share: limits, queues and the deadline timer."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from onceward.http.server.exchange import Application
from onceward.http.server.limits import ConnectionLimits, Explain
from onceward.http.server.tick_queue import TickQueue
from onceward.runtime.line_limit import LINE_INTERVAL_SECONDS, LineLimit, suppressed_text
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.settings import Settings

_log = logging.getLogger("onceward.http")

CHECK_INTERVAL_SECONDS: Final = 1.0
REQUESTS_PER_TICK: Final = 16
"""Requests handled per loop iteration. More would delay the commits of earlier requests: process
and database would alternate instead of working in parallel (decision 0008)."""


class HasDeadlines(Protocol):
    """A connection with deadlines."""

    def check_deadlines(self, now: float) -> None:
        """End what takes too long."""


class ServerContext:
    """The application, the limits and the queues of a server."""

    def __init__(self, application: Application, settings: Settings) -> None:
        self.application = application
        self.settings = settings
        self.limits = ConnectionLimits(settings)
        self.next_tick = TickQueue(limit=REQUESTS_PER_TICK)
        self.flush_queue = TickQueue()
        self._watched: set[HasDeadlines] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._line_limit = LineLimit()
        self._refused = 0
        """Connections refused since the last line that refusals have ended."""
        self._refused_since = 0.0
        self._last_refusal = 0.0

    def watch(self, connection: HasDeadlines) -> None:
        """Check the deadlines of a connection from now on."""
        self._watched.add(connection)
        if self._timer is None:
            self._start_timer()

    def unwatch(self, connection: HasDeadlines) -> None:
        """Stop checking a connection."""
        self._watched.discard(connection)

    def _start_timer(self) -> None:
        seconds = min(CHECK_INTERVAL_SECONDS, self.settings.body_timeout_seconds / 5)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        """Check all deadlines. One timer is enough: none is needed to the millisecond."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        for connection in list(self._watched):
            connection.check_deadlines(now)
        if self._watched:
            self._start_timer()

    # Connections beyond the limits.

    def admit(self, address: str | None) -> bool:
        """Count a connection. Return whether it is within the limits; log it if it is not."""
        explain = self.limits.enter(address)
        if explain is not None:
            self._log_refused(explain)
            return False
        if self._refused and not self.limits.uses_reserve:
            self._log_end_of_refusals()
        return True

    def _log_refused(self, explain: Explain) -> None:
        """Log why a connection is refused, at most once a second."""
        now = asyncio.get_running_loop().time()
        self._refused_since = self._refused_since if self._refused else now
        self._refused += 1
        self._last_refusal = now
        suppressed = self._line_limit.take(now)
        if suppressed is None:
            return
        reason = explain()
        fields = LogFields(error=reason)
        if suppressed:
            fields["suppressed"] = suppressed
        _log.warning("connection refused: %s%s", reason, suppressed_text(suppressed), extra=fields)

    def _log_end_of_refusals(self) -> None:
        """Log once that connections are accepted again, if none was refused for a second.

        At a limit, accepted and refused connections alternate.
        """
        if asyncio.get_running_loop().time() < self._last_refusal + LINE_INTERVAL_SECONDS:
            return
        seconds = self._last_refusal - self._refused_since
        fields = LogFields(count=self._refused, seconds=round(seconds, 1))
        message = "connections are accepted again; %d were refused within %s s"
        _log.warning(message, self._refused, seconds_text(seconds), extra=fields)
        self._refused = 0
        self._line_limit = LineLimit()
