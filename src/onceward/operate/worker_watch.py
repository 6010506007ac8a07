"""A warning of processes that receive events while no worker runs their handlers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from onceward.errors import StoreError
from onceward.model.workers import LiveWorker
from onceward.ports import WorkerRegistry
from onceward.runtime.clock import Clock
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.workers")


class WorkerWatch:
    """Compares the handlers for which jobs are created with those that live workers run."""

    def __init__(self, registry: WorkerRegistry, clock: Clock, *, advice: str) -> None:
        self._registry = registry
        self._clock = clock
        self._advice = advice
        self.routed: frozenset[str] = frozenset()
        """The handlers for which jobs are created, by any process."""
        self.own_handlers: frozenset[str] = frozenset()
        """The handlers that a worker of this process runs."""
        self.warnings: tuple[str, ...] = ()
        """The warnings of the last read. They are public: they name no handler."""
        self._waiting: frozenset[str] = frozenset()
        self._after_outage = False

    async def refresh(self) -> None:
        """Read the live workers, and log when handlers lose or find one."""
        try:
            live = await self._registry.live_workers()
        except StoreError:
            self._after_outage = True
            return
        waiting = self._without_worker(live)
        if self._after_outage and waiting:
            self._after_outage = False  # the heartbeats were also interrupted: wait for the next
            return
        self._after_outage = False
        if waiting != self._waiting:
            self._waiting = waiting
            self._report(waiting, has_worker=bool(live or self.own_handlers))

    def _without_worker(self, live: Iterable[LiveWorker]) -> frozenset[str]:
        return self.routed - self.own_handlers.union(*(worker.handlers for worker in live))

    def _report(self, waiting: frozenset[str], *, has_worker: bool) -> None:
        if not waiting:
            self.warnings = ()
            _log.info("Every handler has a running worker.")
            return
        fields = LogFields(count=len(waiting))
        since = f"{datetime.fromtimestamp(self._clock.now(), UTC):%Y-%m-%d %H:%M:%S} UTC"
        names = ", ".join(sorted(waiting))
        if not has_worker:
            effect = "events are recorded, but no handler runs"
            text = f"No worker has been seen since {since}: {effect}"
            self.warnings = (f"{text}. {self._advice}.",)
            _log.warning("%s (%s). %s.", text, names, self._advice, extra=fields)
            return
        text = f"No worker has been seen since {since} that runs"
        fix = (
            "Run a worker that defines them. For a function that was renamed, pass name= with the "
            "old name; for one that was removed, call inbox.retire(…): its jobs stay queued."
        )
        self.warnings = (f"{text} some of the handlers; the log names them.",)
        message = "%s these handlers, and their jobs wait: %s. %s"
        _log.warning(message, text, names, fix, extra=fields)
