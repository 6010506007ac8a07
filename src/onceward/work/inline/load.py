"""The handlers that run within requests now: why another request is busy, and which are slow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from onceward.model.jobs import Job
from onceward.runtime.clock import Clock
from onceward.runtime.line_limit import LineLimit, suppressed_text
from onceward.runtime.log_fields import LogFields, seconds_text
from onceward.runtime.redact import printable

_log = logging.getLogger("onceward.work")

SLOW_SHARE: Final = 0.5
"""The share of its limit after which a handler that returned is reported as slow."""


@dataclass(slots=True, eq=False)
class _Run:
    """A handler that runs within a request, or has ended."""

    job: Job
    started: float
    ended: float | None = None


class InlineLoad:
    """Knows the handlers that run within the requests of one process."""

    def __init__(self, clock: Clock, *, slots: int) -> None:
        self._clock = clock
        self._slots = slots
        self._runs: list[_Run] = []
        self._slow_lines = LineLimit()

    @contextmanager
    def running(self, job: Job, limit_seconds: float) -> Iterator[None]:
        """Count a handler as running. Log a warning if it took long for its limit."""
        run = _Run(job, self._clock.monotonic())
        self._runs.append(run)
        try:
            yield
        finally:
            self._runs.remove(run)
            run.ended = self._clock.monotonic()
        self._report_slow(run, run.ended - run.started, limit_seconds)

    def longest(self) -> _Run | None:
        """Return the handler that has run for the longest time; None if none runs."""
        return self._runs[0] if self._runs else None

    def explain(self, run: _Run | None, *, is_full: bool) -> str:
        """Return what a request waits for, for the log. `run` ran when it began to wait."""
        run = self.longest() or run
        if run is None:
            return ""
        seconds = (self._clock.monotonic() if run.ended is None else run.ended) - run.started
        holder = (
            f"handler {run.job.handler!r} of source {run.job.source!r}, for "
            f"{seconds_text(seconds)} s (event {printable(run.job.event_id)})"
        )
        if is_full:
            return f"All {self._slots} inline_requests are taken; the longest, {holder}."
        return f"The longest that runs: {holder}."

    def _report_slow(self, run: _Run, seconds: float, limit_seconds: float) -> None:
        if seconds <= SLOW_SHARE * limit_seconds:
            return
        suppressed = self._slow_lines.take(self._clock.monotonic())
        if suppressed is None:
            return
        job = run.job
        fields = LogFields(
            event_id=printable(job.event_id),
            source=job.source,
            handler=job.handler,
            seconds=round(seconds, 1),
        )
        if suppressed:
            fields["suppressed"] = suppressed
        message = (
            "handler %r of source %r took %s of the %s s that it has within the request; at the "
            "limit its sender gets 500: make it faster, or receive the source in the background%s"
        )
        texts = seconds_text(seconds), seconds_text(limit_seconds)
        more = suppressed_text(suppressed)
        _log.warning(message, job.handler, job.source, *texts, more, extra=fields)
