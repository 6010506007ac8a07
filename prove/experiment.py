"""One service on one database under load: started, subjected to faults, drained and checked."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

from prove.checker import Figures, check_ledger
from prove.fleet import FleetSize, ServiceFleet
from prove.history import History
from prove.load_generator import LoadGenerator
from prove.timeline import with_timeline
from prove.workload import Workload
from support.database import RawDatabase
from support.ledger_checker import Findings, Violation
from support.processes import ConditionTimeout, eventually

CONNECTIONS = 32
REQUESTS_PER_EVENT = 1.3
MAX_BACKLOG_JOBS = 400
"""Beyond this the load pauses: the jobs of a killed worker run one at a time."""

SUPERVISE_SECONDS = 0.2
RECOVERY_SECONDS = 30.0
DRAIN_SECONDS = 30.0
IN_FLIGHT_SECONDS = 0.1
POLL_SECONDS = 0.02
RECOVERED_REQUESTS = 20
RECOVERED_RUNS = 10


class Delay(NamedTuple):
    """The time until something worked again, and the most that it may take."""

    seconds: float
    limit_seconds: float


class Experiment:
    """The load, the processes and the history of one database."""

    def __init__(
        self,
        name: str,
        url: str,
        size: FleetSize,
        *options: str,
        seed: int,
        direct_url: str | None = None,
        environment: Mapping[str, str] | None = None,
        workload: Workload | None = None,
        **settings: Any,
    ) -> None:
        self.ledger = RawDatabase(direct_url or url)
        self.tally: Counter[str] = Counter()
        self.findings = Findings()
        self.figures = Figures()
        self.delays: dict[str, Delay] = {}
        self.fleet = ServiceFleet(url, size, *options, environment=environment, **settings)
        self.history = History(workload or Workload(seed, name))
        self.load_generator = LoadGenerator(
            self.history, self.fleet.addresses, connections=CONNECTIONS, seed=seed
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.fleet)
            stack.callback(self.load_generator.stop)
            self.load_generator.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, events: int, seconds: float) -> None:
        """Send this many more events, spread over this time. Return at once."""
        self.load_generator.limit = self.history.workload.size + events
        self.load_generator.rate = max(events, 1) * REQUESTS_PER_EVENT / seconds
        self.load_generator.is_requeueing = True

    def wait_until_sent(self, deadline: float) -> None:
        """Wait until every event was sent at least once, or until the deadline."""
        limit = self.load_generator.limit
        while self.history.workload.size < limit and time.monotonic() < deadline:
            self.wait(SUPERVISE_SECONDS)

    def wait(self, seconds: float) -> None:
        """Let the service run for some time under supervision."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, SUPERVISE_SECONDS))  # the supervisor polls its processes
            self.supervise()

    def expect(
        self, condition: Callable[[], bool], what: str, seconds: float, otherwise: Violation
    ) -> bool:
        """Wait for a condition, and return whether it came true. A timeout is a finding."""
        try:
            return eventually(condition, what, seconds)
        except ConditionTimeout as timeout:
            self.findings.add(otherwise, str(timeout))
            return False

    def wait_until_recovered(self, accepted: int = 20) -> bool:
        """Wait until this many more requests are accepted, and return whether they were."""
        target = self.history.accepted + accepted
        self.load_generator.limit = max(
            self.load_generator.limit, self.history.workload.size + 2 * accepted
        )
        self.load_generator.is_paused = False
        return self.expect(
            lambda: self.history.accepted >= target,
            f"{accepted} more requests are accepted",
            RECOVERY_SECONDS,
            otherwise=Violation.NOT_RECOVERED,
        )

    def watch_recovery(
        self, after: str, conditions: Mapping[str, Callable[[], bool]], limit_seconds: float
    ) -> bool:
        """Time how long each condition takes to hold, and return whether all did in time."""
        started, seconds = time.monotonic(), 0.0
        pending = dict(conditions)
        while pending and seconds < limit_seconds:
            for what, holds in list(pending.items()):
                is_met = holds()  # may take a while
                seconds = time.monotonic() - started
                if is_met and seconds < limit_seconds:
                    del pending[what]
                    self.add_delay(f"{what} after {after}", seconds, limit_seconds)
            time.sleep(POLL_SECONDS)
        for what in pending:
            detail = f"{what} after {after}: not within {limit_seconds:g} s"
            self.findings.add(Violation.NOT_RECOVERED, detail)
        return not pending

    def add_delay(self, what: str, seconds: float, limit_seconds: float) -> None:
        """Keep the longest time of each kind."""
        delay = Delay(round(seconds, 2), limit_seconds)
        self.delays[what] = max(delay, self.delays.get(what, delay))

    def service_conditions(self) -> dict[str, Callable[[], bool]]:
        """Return what must hold again after a fault: new requests, new work, readiness."""
        accepted, runs = self.history.accepted, self.ledger.count("probes")
        return {
            "recording": lambda: self.history.accepted >= accepted + RECOVERED_REQUESTS,
            "handlers": lambda: self.ledger.count("probes") >= runs + RECOVERED_RUNS,
            "readiness": self.fleet.is_ready,
        }

    def supervise(self) -> None:
        """Replace processes that exited, and pause the load while the backlog is too long."""
        self.fleet.replace_exited()
        self.load_generator.is_paused = self.backlog() > MAX_BACKLOG_JOBS

    def backlog(self) -> int:
        """Return how many jobs are queued or in progress."""
        return int(self.ledger.value("SELECT count(*) FROM onceward.jobs WHERE status = 'queued'"))

    def drain(self) -> None:
        """Stop the load, then wait until every request is resolved and every job has ended."""
        self.load_generator.is_requeueing = False
        self.load_generator.limit = 0
        time.sleep(IN_FLIGHT_SECONDS)  # a sender may be between its check of the limit and its send
        self.expect(
            lambda: self.load_generator.unresolved == 0,
            "every request is resolved",
            RECOVERY_SECONDS,
            otherwise=Violation.NOT_RECOVERED,
        )
        self.fleet.replace_exited()
        self.expect(
            lambda: self.backlog() == 0,
            "every job has ended",
            DRAIN_SECONDS,
            otherwise=Violation.UNFINISHED,
        )
        for log in self.fleet.unexpected_exits:
            self.findings.add(Violation.PROCESS_EXITED, log)

    def check(self) -> None:
        """Compare the ledger with the history."""
        findings, self.figures = check_ledger(self.ledger, self.history)
        self.add(findings, self.ledger)

    def add(self, findings: Findings, ledger: RawDatabase) -> None:
        """Add findings about a ledger, each with the timeline of its event."""
        self.findings.counts += findings.counts
        self.findings.items += [
            with_timeline(finding, ledger, self.history) for finding in findings.items
        ]
