"""One service on one database under load: from its start, through faults, to rest and the check."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from prove.checker import Checker, Figures, Findings, Rule
from prove.client import Sender
from prove.fleet import ServiceFleet, Shape
from prove.journal import Journal
from prove.mix import Mix
from prove.timeline import told
from support.database import RawDatabase

CONNECTIONS = 32
REQUESTS_AN_EVENT = 1.3
BACKLOG_JOBS = 400
"""Beyond this, the senders wait for the workers: what a killed one holds is run job by job."""

TEND_SECONDS = 0.2
BACK_SECONDS = 30.0
REST_SECONDS = 30.0
STEP_SECONDS = 0.02

Tally = Counter[str]


class Trial:
    """The load, the processes and the journal of one database."""

    def __init__(
        self,
        name: str,
        url: str,
        shape: Shape,
        *options: str,
        seed: int,
        direct_url: str | None = None,
        **settings: float | str,
    ) -> None:
        self.ledger = RawDatabase(direct_url or url)
        self.tally: Tally = Counter()
        self.findings = Findings()
        self.figures = Figures()
        self.town = ServiceFleet(url, shape, *options, **settings)
        self.journal = Journal(Mix(seed, name))
        self.sender = Sender(self.journal, self.town.addresses, connections=CONNECTIONS, seed=seed)
        self._graves = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as graves:
            graves.enter_context(self.town)
            graves.callback(self.sender.stop)
            self.sender.start()
            self._graves = graves.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._graves.close()

    def load(self, events: int, seconds: float) -> None:
        """Have so many events more sent, spread over some time."""
        self.sender.limit = self.journal.mix.sent + events
        self.sender.rate = max(events, 1) * REQUESTS_AN_EVENT / seconds
        self.sender.is_requeueing = True

    def wait_until_sent(self, deadline: float) -> None:
        """Wait until all events were sent, to whatever end so far; or until the time is up."""
        while self.journal.mix.sent < self.sender.limit and time.monotonic() < deadline:
            self.wait(TEND_SECONDS)

    def wait(self, seconds: float) -> None:
        """Let it run for a while, and look after it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, TEND_SECONDS))  # the faults go on meanwhile
            self.tend()

    def wait_for(self, look: Callable[[], bool], rule: Rule, what: str, seconds: float) -> bool:
        """Wait until something is so; otherwise that is a finding."""
        deadline = time.monotonic() + seconds
        while not look():
            if time.monotonic() > deadline:
                self.findings.add(rule, f"{what}: not within {seconds:g} s")
                return False
            time.sleep(STEP_SECONDS)
        return True

    def wait_until_back(self, accepted: int = 20) -> bool:
        """Wait until it takes requests again; there are always some more to send for that."""
        so_far = self.journal.accepted
        self.sender.limit = max(self.sender.limit, self.journal.mix.sent + 2 * accepted)
        self.sender.is_paused = False
        return self.wait_for(
            lambda: self.journal.accepted >= so_far + accepted,
            Rule.NOT_BACK,
            f"{accepted} more requests are accepted",
            BACK_SECONDS,
        )

    def tend(self) -> None:
        """Replace what died by itself, and let the workers keep up."""
        self.town.look_after()
        self.sender.is_paused = self.queued() > BACKLOG_JOBS

    def queued(self) -> int:
        """How many jobs are left to do."""
        return int(self.ledger.value("SELECT count(*) FROM onceward.jobs WHERE status = 'queued'"))

    def rest(self) -> None:
        """Send no more, and wait until all is accepted and all jobs have ended."""
        self.sender.is_requeueing = False
        self.sender.limit = 0
        time.sleep(5 * STEP_SECONDS)  # a request or a requeue may be on its way out
        self.wait_for(
            lambda: self.sender.open == 0, Rule.NOT_BACK, "everything is accepted", BACK_SECONDS
        )
        self.town.look_after()
        self.wait_for(
            lambda: self.queued() == 0, Rule.NOT_AT_REST, "no job is left to do", REST_SECONDS
        )
        for log in self.town.accidents:
            self.findings.add(Rule.DIED, log)

    def check(self) -> None:
        """Hold the ledger against the journal. Each finding about an event gets its timeline."""
        checker = Checker(self.ledger, self.journal)
        checker.check()
        self.figures = checker.figures
        self.findings.counts += checker.findings.counts
        self.findings.items += [
            told(finding, self.ledger, self.journal) for finding in checker.findings.items
        ]
