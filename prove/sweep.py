"""The process is killed at each failpoint, when it comes there for the 1st, 2nd, 3rd … time.

Each process takes over what the one before it left behind, with a mix of its own on top: so every
kill is followed by a recovery, and every recovery is killed in its turn. From the fourth time
on, some times are skipped; the last is when a process gets through.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice

import httpx

from onceward.runtime.failpoints import POINTS
from prove.checker import Checker, Finding, Rule
from prove.client import Line
from prove.fleet import APP, SETTINGS
from prove.journal import Journal, Outcome, Requeue, outcome_of
from prove.mix import Kind, Mix
from prove.timeline import told
from support.database import RawDatabase
from support.processes import Died, Item, Serve, eventually, reached

PLAIN_EVENTS = 4
"""So many that some of them share a transaction."""

RETRIES = 2
"""What is open beyond these is left to the processes that follow, else the points never end."""

Sending = tuple[int, int]


class Sweep:
    """One database through all of its processes."""

    def __init__(self, url: str, seed: int) -> None:
        self.ledger = RawDatabase(url)
        self.journal = Journal(Mix(seed, "sweep"))
        self.kills: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self._url = url
        self._open: dict[Sending, None] = {}

    def run(self, progress: Callable[[int], None]) -> None:
        """Kill at one point after the other, then let all that is left come to its end."""
        for point in POINTS:
            count = 1
            while not self._gets_through(point, count):
                progress(self.kills.total())
                count += max(1, count // 2)
        with self._serve() as service:
            eventually(lambda: self._sent_all(service), "everything is accepted")
            service.wait_until_at_rest()
        checker = Checker(self.ledger, self.journal)
        checker.check()
        self.figures = checker.figures
        self.findings += [
            told(finding, self.ledger, self.journal) for finding in checker.findings.items
        ]

    def _serve(self, failpoints: str = "") -> Serve:
        return Serve(APP, self._url, failpoints=failpoints, forked=True, **SETTINGS)

    def _gets_through(self, point: str, count: int) -> bool:
        """Run a process that is to be killed when it comes to a point for the count-th time."""
        try:
            service = self._serve(f"{point}:kill:{count}")
        except Died as died:
            self._note_kill(point, reached(str(died)), str(died))
            return False
        with service:
            self._drive(service)
            if service.running:
                service.kill()
                return True
            self._note_kill(point, service.failpoint, service.log)
            return False

    def _note_kill(self, point: str, where: str | None, log: str) -> None:
        if where == point:
            self.kills[point] += 1
        else:
            self.findings.append(Finding(Rule.DIED, log[-4_000:]))

    def _drive(self, service: Serve) -> None:
        """Retry what is open, send a mix, requeue what failed; until the end, or the kill."""
        mix = self.journal.mix
        marked, malformed = mix.new_of(Kind.MARKED), mix.new_of(Kind.MALFORMED)
        plain = [mix.new_of(Kind.PLAIN) for _ in range(PLAIN_EVENTS)]
        self._send(service, [*islice(self._open, RETRIES), (marked, 0)])
        self._send(service, [(marked, 0), (marked, 1), (malformed, 0), *((n, 0) for n in plain)])
        for number in (marked, *plain):
            self._ended(service, number)
        failed = self._ended(service, malformed)
        if failed is not None:
            self._requeue(service, int(failed["id"]))
            self._ended(service, malformed)

    def _sent_all(self, service: Serve) -> bool:
        self._send(service, list(self._open))
        return not self._open

    def _send(self, service: Serve, sendings: list[Sending]) -> None:
        """Send some requests at once; what has no final answer stays open."""
        address = service.http.base_url.host, service.http.base_url.port or 0

        async def send(number: int, variant: int) -> None:
            line, start = Line(lambda: [address], 0), time.time()
            answer = await line.ask(
                "POST", "/events/ingest", self.journal.mix.body(number, variant)
            )
            line.close()
            outcome = self.journal.note(number, variant, answer, start, time.time())
            if outcome is Outcome.UNKNOWN:
                self._open[number, variant] = None
            else:
                self._open.pop((number, variant), None)

        async def send_all() -> None:
            await asyncio.gather(*(send(*sending) for sending in sendings))

        asyncio.run(send_all())

    def _requeue(self, service: Serve, job: int) -> None:
        status, body = 0, b""
        try:
            response = service.requeue(str(job), actor="ann", reason="the sweep")
            status, body = response.status_code, response.content
        except httpx.TransportError:
            service.wait()
        entry = Requeue(job, outcome_of(status, body), status, time.time())
        self.journal.requeues.append(entry)

    def _ended(self, service: Serve, number: int) -> Item | None:
        """Wait until an event's job has ended. None when the process is killed before that."""

        def look() -> Item | None:
            jobs = service.items("jobs", event_id=self.journal.mix.event_id(number))
            return jobs[0] if jobs and jobs[0]["status"] in ("done", "failed") else None

        if not service.running:
            return None
        try:
            return eventually(look, f"the job of event {number} has ended")
        except httpx.TransportError:
            service.wait()
            return None
