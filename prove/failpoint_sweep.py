"""A kill at each failpoint, at the 1st, 2nd, 3rd … time it is reached.

Each process recovers what its predecessor left behind and adds a small workload of its own. So
every kill is followed by a recovery, and recoveries are killed as well. Beyond the third time the
count grows by half each time, until a process survives.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice

import httpx

from onceward.runtime.failpoints import POINTS, REDIS_POINTS
from prove.checker import Figures, check_ledger
from prove.client import FailoverClient
from prove.fleet import APP, SETTINGS
from prove.history import History
from prove.outside.stage import EFFECT_POINTS
from prove.retention.stage import RETENTION_POINTS
from prove.timeline import with_timeline
from prove.workload import EventKind, Request, Workload
from support.client_history import Outcome, Requeue, outcome_of
from support.database import RawDatabase
from support.ledger_checker import Finding, Violation
from support.processes import Item, Serve, StartupFailed, eventually, failpoint_in

SWEPT = tuple(
    point for point in POINTS if point not in (*EFFECT_POINTS, *RETENTION_POINTS, *REDIS_POINTS)
)
"""The stage of effects reaches its own; the sweep runs without Redis."""

PLAIN_EVENTS = 4
"""Enough for some of them to share a transaction."""

BATCHED_EVENTS = 2
"""Enough for a call with more than one event."""

MAX_RETRIES = 2
"""Retrying more would reach the failpoints ever more often, and the sweep would not end."""


class FailpointSweep:
    """All processes of a sweep over one database."""

    def __init__(self, url: str, seed: int) -> None:
        self.ledger = RawDatabase(url)
        self.history = History(Workload(seed, "sweep"))
        self.kills: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.figures = Figures()
        self._url = url
        self._unresolved: dict[Request, None] = {}

    def run(self, progress: Callable[[int], None]) -> None:
        """Kill at each failpoint, then let a last process finish, and check the ledger."""
        for point in SWEPT:
            count = 1
            while not self._survives(point, count):
                progress(self.kills.total())
                count += max(1, count // 2)
        with self._serve() as service:
            eventually(lambda: self._resolve_all(service), "every request is resolved")
            service.wait_until_idle()
        findings, self.figures = check_ledger(self.ledger, self.history)
        self.findings += [
            with_timeline(finding, self.ledger, self.history) for finding in findings.items
        ]

    def _serve(self, failpoints: str = "") -> Serve:
        return Serve(APP, self._url, failpoints=failpoints, forked=True, **SETTINGS)

    def _survives(self, point: str, count: int) -> bool:
        """Run a process that is killed when it reaches a point for the count-th time."""
        try:
            service = self._serve(f"{point}:kill:{count}")
        except StartupFailed as failure:
            self._count_kill(point, failpoint_in(str(failure)), str(failure))
            return False
        with service:
            self._drive(service)
            if service.running:
                service.kill()
                return True
            self._count_kill(point, service.failpoint, service.log)
            return False

    def _count_kill(self, point: str, killed_at: str | None, log: str) -> None:
        if killed_at == point:
            self.kills[point] += 1
        else:
            self.findings.append(Finding(Violation.PROCESS_EXITED, log[-4_000:]))

    def _drive(self, service: Serve) -> None:
        """Retry, send new events and requeue a failed job, until done or killed."""
        workload = self.history.workload
        with_effect = workload.new_of_kind(EventKind.WITH_EFFECT)
        malformed = workload.new_of_kind(EventKind.MALFORMED)
        plain = [workload.new_of_kind(EventKind.PLAIN) for _ in range(PLAIN_EVENTS)]
        plain += [workload.new_of_kind(EventKind.BATCHED) for _ in range(BATCHED_EVENTS)]
        repeats = [(with_effect, 0), (with_effect, 1)]
        self._send(service, [*islice(self._unresolved, MAX_RETRIES), (with_effect, 0)])
        self._send(service, [*repeats, (malformed, 0), *((number, 0) for number in plain)])
        for number in (with_effect, *plain):
            self._wait_for_job(service, number)
        failed = self._wait_for_job(service, malformed)
        if failed is not None:
            self._requeue(service, int(failed["id"]))
            self._wait_for_job(service, malformed)

    def _resolve_all(self, service: Serve) -> bool:
        self._send(service, list(self._unresolved))
        return not self._unresolved

    def _send(self, service: Serve, requests: list[Request]) -> None:
        """Send requests concurrently; keep the ones without a final response for a retry."""
        address = service.http.base_url.host, service.http.base_url.port or 0

        async def send(number: int, variant: int) -> None:
            client, start = FailoverClient(lambda: [address], 0), time.time()
            body = self.history.workload.body(number, variant)
            response = await client.request("POST", self.history.workload.path(number), body)
            client.close()
            outcome = self.history.record(number, variant, response, start, time.time())
            if outcome is Outcome.UNKNOWN:
                self._unresolved[number, variant] = None
            else:
                self._unresolved.pop((number, variant), None)

        async def send_all() -> None:
            await asyncio.gather(*(send(*request) for request in requests))

        asyncio.run(send_all())

    def _requeue(self, service: Serve, job: int) -> None:
        status, body = 0, b""
        try:
            response = service.requeue(str(job), actor="ann", reason="failpoint sweep")
            status, body = response.status_code, response.content
        except httpx.TransportError:
            service.wait()
        self.history.requeues.append(Requeue(job, outcome_of(status, body)))

    def _wait_for_job(self, service: Serve, number: int) -> Item | None:
        """Return the job of an event when it has ended; None if the process is killed first."""

        def ended_job() -> Item | None:
            jobs = service.items("jobs", event_id=self.history.workload.event_id(number))
            return jobs[0] if jobs and jobs[0]["status"] in ("done", "failed") else None

        if not service.running:
            return None
        try:
            return eventually(ended_job, f"the job of event {number} has ended")
        except httpx.TransportError:
            service.wait()
            return None
