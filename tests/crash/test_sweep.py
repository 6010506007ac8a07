"""The process is killed at each point, when it comes there for the 1st, 2nd, 3rd … time.

Each process takes over what the one before it left behind, with a mix of its own on top: so every
kill is followed by a recovery, and every recovery is killed in its turn.
"""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

from onceward.failpoints import POINTS
from tests.checker import Journal, Sending, check_acknowledged, check_at_rest
from tests.direct import Direct
from tests.processes import APPS, Died, Item, Serve, eventually, reached

PROBE = APPS / "probe.py"
KILLED = -9


class Sweep:
    """One database through all of its processes."""

    def __init__(self, url: str) -> None:
        self.direct = Direct(url)
        self.journal = Journal()
        self.kills: Counter[tuple[str, str]] = Counter()
        self._url = url
        self._phase = "start"

    def run(self) -> None:
        """Kill at one point after the other, then let all that is left come to its end."""
        for point in POINTS:
            for count in itertools.count(1):
                if self._gets_through(point, count):
                    break
        with self._serve(poll_seconds=0.1) as service:
            while left := self.journal.open:
                self._send(service, left)
            service.wait_until_at_rest()
        check_at_rest(self.direct, self.journal)

    def _serve(self, failpoints: str = "", poll_seconds: float = 5.0) -> Serve:
        return Serve(
            PROBE,
            self._url,
            failpoints=failpoints,
            forked=True,  # some hundred starts
            lease_seconds=0.5,
            max_attempts=100,  # a job whose worker is killed again and again is not to be parked
            poll_seconds=poll_seconds,
        )

    def _gets_through(self, point: str, count: int) -> bool:
        """Run a process that is to be killed when it comes to a point for the count-th time."""
        self._phase = "start"
        try:
            service = self._serve(f"{point}:kill:{count}")
        except Died as died:
            log = str(died)
        else:
            return self._drive_through(service, point, count)
        assert reached(log) == point, log
        self.kills["start", point] += 1
        return False

    def _drive_through(self, service: Serve, point: str, count: int) -> bool:
        with service:
            self._drive(service, f"{point}-{count}")
            if service.running:
                service.kill()
                return True
            assert (service.wait(), service.failpoint) == (KILLED, point)
            self.kills[self._phase, point] += 1
            check_acknowledged(self.direct, self.journal)
            return False

    def _drive(self, service: Serve, name: str) -> None:
        """Retry what is open, send a mix, requeue what failed; until the end, or the kill."""
        paid, malformed = Sending(f"{name}-paid", 5), Sending(f"{name}-malformed", None)
        conflict, also = Sending(paid.event_id, 7), Sending(f"{name}-also", 11)
        self._phase = "work"
        self._send(service, [*self.journal.open, paid])
        self._send(service, [paid, conflict, malformed, also])
        done = self._ended(service, also.event_id)
        failed = self._ended(service, malformed.event_id)
        if done is None or failed is None:
            return
        assert (done["status"], failed["status"]) == ("done", "failed")
        self._phase = "requeue"
        self.journal.requeue(service, failed["id"])
        self._ended(service, malformed.event_id)

    def _send(self, service: Serve, sendings: list[Sending]) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda sending: self.journal.send(service, sending), sendings))

    def _ended(self, service: Serve, event_id: str) -> Item | None:
        """Wait until an event's job has ended. None when the process is killed before that."""

        def look() -> Item | None:
            job = service.job(event_id)
            return job if job["status"] in ("done", "failed") else None

        try:
            return eventually(look, f"the job of {event_id} has ended")
        except httpx.TransportError:
            service.wait()
            return None


def test_no_kill_at_any_point_loses_or_doubles_anything(database_url: str) -> None:
    sweep = Sweep(database_url)
    sweep.run()
    killed_at_work = {point for phase, point in sweep.kills if phase != "start"}
    assert killed_at_work == set(POINTS)
    assert {("requeue", "operate.written"), ("requeue", "operate.committed")} <= sweep.kills.keys()
    assert sweep.kills.total() > 50
