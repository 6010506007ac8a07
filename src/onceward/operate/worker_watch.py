"""Warnings of processes that receive events while no worker runs their handlers, or not well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from onceward.errors import StoreError
from onceward.model.workers import LiveWorker, WorkerHealth
from onceward.ports.watching import WorkerRegistry
from onceward.runtime.clock import Clock
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import as_sentence

_log = logging.getLogger("onceward.workers")

NO_HANDLERS: Final = (
    "This inbox has no handlers, and no worker has registered any: every event ends ignored, or "
    "waits for review. "
    "Import the modules that define them in the module that mounts the inbox, or below the line "
    "that creates it."
)
_SINCE_START: Final = "since this process started"
_MAX_WARNINGS: Final = 20
"""More workers with problems are only counted in the warnings. The log names all."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why jobs of a live worker wait. It is the same problem while worker and handler are."""

    worker: str
    handler: str
    """The paused handler; empty if the worker can claim no jobs at all."""

    def end_text(self, *, is_alive: bool) -> str:
        """Return the line that says that the problem is over."""
        if self.handler:
            stopped = "" if is_alive else ", which has stopped"
            return f"Handler '{self.handler}' is no longer paused in worker {self.worker}{stopped}."
        if is_alive:
            return f"Worker {self.worker} claims jobs again."
        return f"Worker {self.worker}, which could claim no jobs, has stopped."

    @property
    def fields(self) -> LogFields:
        """The fields of its log lines."""
        fields = LogFields(worker=self.worker)
        if self.handler:
            fields["handler"] = self.handler
        return fields


class _Warning(NamedTuple):
    """The words for a problem: with names for the log, and without for ``/readyz``."""

    text: str
    public_text: str


def _problems(worker: str, health: WorkerHealth) -> Iterator[tuple[_Problem, _Warning]]:
    """Yield the problems of a worker, each with its warning."""
    if health.claims_failed_since:
        since = _time(health.claims_failed_since)
        text = as_sentence(f"has claimed no job since {since}: {health.claim_error}")
        public_text = f"A worker {text} The log names the worker."
        yield _Problem(worker, ""), _Warning(f"Worker {worker} {text}", public_text)
    for handler, at in sorted(health.paused.items()):
        text = f"(since {_time(at)}): its timed-out calls still run, and it starts no jobs there."
        advice = "The log of that worker says what to do."
        yield (
            _Problem(worker, handler),
            _Warning(
                f"Handler '{handler}' is paused in worker {worker} {text} {advice}",
                f"A handler is paused in a worker {text} The log names both.",
            ),
        )


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


class _Coverage(NamedTuple):
    """Which handlers lack a worker, as far as it changes the warnings."""

    waiting: frozenset[str]
    stranded: frozenset[str]
    has_handlers: bool
    has_worker: bool


class WorkerWatch:
    """Compares the handlers for which jobs are created with those that live workers run.

    It also reports the problems of workers in other processes, as their heartbeats state them.
    """

    def __init__(
        self, registry: WorkerRegistry, clock: Clock, *, advice: str, database_text: str
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._advice = advice
        self._database_text = database_text
        self.routed: frozenset[str] = frozenset()
        """The handlers for which jobs are created, by any process."""
        self.own_handlers: frozenset[str] = frozenset()
        """The handlers that a worker of this process runs."""
        self.inline_handlers: frozenset[str] = frozenset()
        """The handlers that need a worker only for jobs that an operator requeued."""
        self.own_name = ""
        self.own_health: Callable[[], WorkerHealth] = WorkerHealth
        """The health of this process's worker, which logs its problems itself."""
        self._handler_warnings: tuple[str, ...] = ()
        self._stranded_warnings: tuple[str, ...] = ()
        self._problems: dict[_Problem, _Warning] = {}
        self._seen: set[str] = set()
        none: frozenset[str] = frozenset()
        self._reported = _Coverage(none, none, has_handlers=True, has_worker=True)
        self._after_outage = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the last read. They are public: they have no names and no values."""
        own = dict(_problems(self.own_name, self.own_health()))
        problems = [warning.public_text for warning in (own | self._problems).values()]
        every = (*self._handler_warnings, *self._stranded_warnings, *problems)
        if len(every) <= _MAX_WARNINGS:
            return every
        more = f"{len(every) - _MAX_WARNINGS} more warnings of workers are in the log."
        return (*every[:_MAX_WARNINGS], more)

    async def refresh(self) -> None:
        """Read the live workers; log when handlers lose or find one, and when problems change."""
        try:
            live = await self._registry.live_workers()
            missing = self._without_worker(live)
            unneeded = missing & self.inline_handlers
            stranded = await self._registry.queued_handlers(unneeded) if unneeded else unneeded
        except StoreError:
            self._after_outage = True
            return
        waiting = missing - self.inline_handlers
        if self._after_outage and (waiting or stranded):
            self._after_outage = False  # the heartbeats were also interrupted: wait for the next
            return
        self._after_outage = False
        has_worker = bool(live or self.own_handlers) or not waiting
        has_handlers = bool(self.routed)
        coverage = _Coverage(waiting, stranded, has_handlers=has_handlers, has_worker=has_worker)
        if coverage != self._reported:
            before, self._reported = self._reported, coverage
            if coverage._replace(stranded=before.stranded) != before:
                self._report(waiting, has_worker=has_worker)
            if stranded != before.stranded:
                self._report_stranded(stranded)
        self._seen |= self.routed - waiting
        self._report_problems({worker.name: worker.health for worker in live})

    def _without_worker(self, live: Iterable[LiveWorker]) -> frozenset[str]:
        return self.routed - self.own_handlers.union(*(worker.handlers for worker in live))

    def _report_problems(self, live: Mapping[str, WorkerHealth]) -> None:
        """Log the problems of other processes' workers when they begin and when they end."""
        found = {
            problem: warning
            for name, health in live.items()
            if name != self.own_name
            for problem, warning in _problems(name, health)
        }
        for problem, warning in found.items():
            if problem not in self._problems:
                _log.warning("%s", warning.text, extra=problem.fields)
        for problem in self._problems.keys() - found.keys():
            text = problem.end_text(is_alive=problem.worker in live)
            _log.info("%s", text, extra=problem.fields)
        self._problems = found

    def _report_stranded(self, stranded: frozenset[str]) -> None:
        """Report jobs of inline sources that were requeued, and that no worker can run."""
        if not stranded:
            self._stranded_warnings = ()
            _log.info("No requeued job of an inline source waits for a worker that is missing.")
            return
        text = "Jobs are queued for handlers of inline sources, and no worker runs these handlers"
        effect = "the next deliveries of their events do not run the jobs, they get 202"
        self._stranded_warnings = (
            f"{text}: {effect}. The log names the handlers. {self._advice}.",
        )
        names = ", ".join(sorted(stranded))
        message = "%s (%s): %s. %s. %s."
        fields = LogFields(count=len(stranded))
        _log.warning(message, text, names, effect, self._advice, self._database_text, extra=fields)

    def _report(self, waiting: frozenset[str], *, has_worker: bool) -> None:
        if not self.routed:
            self._handler_warnings = (NO_HANDLERS,)
            _log.warning(NO_HANDLERS)
            return
        if not waiting:
            self._handler_warnings = ()
            _log.info("Every handler has a running worker.")
            return
        fields = LogFields(count=len(waiting))
        since = _SINCE_START
        if waiting & self._seen:
            since = f"since {_time(datetime.fromtimestamp(self._clock.now(), UTC))}"
        names = ", ".join(sorted(waiting))
        if not has_worker:
            effect = "events are recorded, and their jobs wait"
            text = f"No worker has been seen {since}: {effect}"
            self._handler_warnings = (f"{text}. {self._advice}.",)
            message = "%s (%s). %s. %s."
            _log.warning(message, text, names, self._advice, self._database_text, extra=fields)
            return
        text = f"No worker has been seen {since} that runs"
        fix = (
            "Run a worker that defines them. For a function that was renamed, pass name= with the "
            "old name; for one that was removed, call inbox.retire(…): its jobs stay queued."
        )
        self._handler_warnings = (f"{text} some of the handlers; the log names them.",)
        message = "%s these handlers, and their jobs wait: %s. %s"
        _log.warning(message, text, names, fix, extra=fields)
