"""One service of the queue's stages: its processes, sender, operator, markers and kills."""

import random
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from prove.fleet import FleetSize, ServiceFleet
from prove.queueing.events import ORDERED, Handler
from prove.queueing.markers import VARIABLE, Marker, MarkerFolder
from prove.queueing.sender import Sender
from support.database import RawDatabase
from support.memory import TEMPORARY
from support.processes import ROOT, ConditionTimeout, Transport, eventually

APP = ROOT / "prove" / "queueing" / "app.py"
SENT_SECONDS = 30.0
DRAIN_SECONDS = 30.0
ACTION = {"actor": "ann", "reason": "the proof"}
ACTION_SECONDS = 5.0
OPERATE_SECONDS = 0.05
CANCEL_ONE_IN = 2
CANCELLED = ("status=queued", "status=in_progress", f"status=in_progress&handler={Handler.NOTED}")
"""Filters of the jobs that are cancelled."""

# The product's own limits of time: only announcements and the presence of workers are fast enough.
SETTINGS: dict[str, Any] = {
    "lease_seconds": 60.0,
    "poll_seconds": 5.0,
    "retry_max_seconds": 0.2,
    "workers": 20,
}

UNEXPLAINED = """
    SELECT j.id, h.name, e.event_id, j.ordering_key, j.parked, j.solo, j.attempts
    FROM onceward.jobs j
    JOIN onceward.handlers h ON h.id = j.handler
    JOIN onceward.events e ON e.id = j.event
    WHERE j.status = 'queued' AND NOT (h.holds_key AND j.ordering_key IS NOT NULL AND EXISTS (
        SELECT 1 FROM onceward.jobs head
        WHERE head.handler = j.handler AND head.ordering_key = j.ordering_key
        AND head.status = 'failed' AND head.event < j.event
    ))
"""
"""The queued jobs, without those that wait behind a failed job of their key."""


@dataclass
class Pause:
    """A pause of a handler or a source, from the response to the request that resumed it."""

    kind: str
    """`handlers` or `sources`."""
    name: str
    began: float
    ended: float = float("inf")

    def affects(self, marker: Marker) -> bool:
        """Return whether a marker is of the paused handler or source."""
        return self.name == (marker.handler if self.kind == "handlers" else marker.source)


class QueueTrial:
    """The processes and all that was done to them."""

    def __init__(
        self, url: str, size: FleetSize, *options: str, seed: int, **settings: Any
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="onceward-markers-", dir=TEMPORARY)
        folder = Path(self._folder.name)
        self.markers = MarkerFolder(folder)
        self.ledger = RawDatabase(url)
        self.fleet = ServiceFleet(
            url,
            size,
            *options,
            app=APP,
            variables={VARIABLE: str(folder)},
            **{**SETTINGS, **settings},
        )
        self.sender = Sender(self.fleet.addresses)
        self.pauses: list[Pause] = []
        self.killed_at: dict[int, float] = {}
        """The time just before each process was killed, by its id."""
        self.cancelled: dict[int, float] = {}
        """The jobs that were cancelled, with the time of the response."""
        self.cancel_requests: dict[int, float] = {}
        """The jobs that an operator tried to cancel, with the time of the request."""
        self.requeued: set[int] = set()
        """The jobs that an operator tried to requeue."""
        self._rng = random.Random(seed)  # noqa: S311 - reproducible
        self._http = httpx.Client(timeout=ACTION_SECONDS, transport=Transport())
        self._is_operating = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._folder)
            stack.enter_context(self._http)
            stack.enter_context(self.fleet)
            stack.callback(self.sender.stop)
            self.sender.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_operating = False
        self._stack.close()

    # Faults and actions.

    def kill(self, slot: int) -> None:
        """SIGKILL the process in a slot, and replace it."""
        self.note_kill(slot)
        self.fleet.kill(slot)

    def note_kill(self, slot: int) -> None:
        """Note that a process is about to be killed: its handlers end now."""
        self.killed_at[self.fleet.processes[slot].pid] = time.time()

    def pause(self, kind: str, name: str) -> None:
        """Pause a handler or a source."""
        self._insist(f"{kind}/{name}/pause")
        self.pauses.append(Pause(kind, name, time.time()))

    def resume(self) -> None:
        """Resume all that is paused."""
        for pause in self.pauses:
            if pause.ended == float("inf"):
                pause.ended = time.time()
                self._insist(f"{pause.kind}/{pause.name}/resume")

    def _insist(self, path: str) -> None:
        """Repeat an action until it has landed; 409 means that an earlier request did."""
        eventually(lambda: self._act(path) in (200, 409), f"{path} is accepted", SENT_SECONDS)

    def _act(self, path: str) -> int:
        """Post an action of an operator, and return the status; 0 without a response."""
        return self._request("POST", f"/admin/{path}", json=ACTION)[0]

    def _request(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        host, port = self._rng.choice(self.fleet.addresses())
        try:
            response = self._http.request(method, f"http://{host}:{port}{path}", **options)
            return response.status_code, response.json()
        except (httpx.HTTPError, ValueError):
            return 0, None

    def start_operator(self) -> threading.Thread:
        """Requeue failed jobs and cancel others at random, in a thread, until `stop_operator`."""
        self._is_operating = True
        thread = threading.Thread(target=self._operate, name="operator", daemon=True)
        thread.start()
        return thread

    def stop_operator(self, thread: threading.Thread) -> None:
        """Wait until the last action has ended."""
        self._is_operating = False
        thread.join()

    def _operate(self) -> None:
        while self._is_operating:
            time.sleep(OPERATE_SECONDS)  # the pace of the operator
            if self._rng.randrange(CANCEL_ONE_IN) == 0:
                self._cancel(self._rng.choice(CANCELLED))
            else:
                self._requeue()

    def _cancel(self, filters: str) -> None:
        if (job := self._any_job(filters)) is not None:
            self.cancel_requests.setdefault(job, time.time())
            if self._act(f"jobs/{job}/cancel") == 200:
                self.cancelled[job] = time.time()

    def _requeue(self) -> None:
        for handler in self._rng.sample(ORDERED, len(ORDERED)):
            if (job := self._any_job(f"status=failed&handler={handler}")) is not None:
                self.requeued.add(job)
                self._act(f"jobs/{job}/requeue")
                return

    def _any_job(self, filters: str) -> int | None:
        status, page = self._request("GET", f"/admin/jobs?limit=50&{filters}")
        items = page["items"] if status == 200 else []
        return int(self._rng.choice(items)["id"]) if items else None

    # The end.

    def is_sent(self) -> bool:
        """Return whether every request was accepted."""
        return self.sender.unresolved == 0

    def drain(self) -> list[tuple[Any, ...]]:
        """Stop the load and wait until no job can run. Return the jobs that wait all the same."""
        self.sender.pause()
        eventually(self.is_sent, "every request is accepted", SENT_SECONDS)
        try:
            eventually(lambda: not self.ledger.rows(UNEXPLAINED), "no job can run", DRAIN_SECONDS)
        except ConditionTimeout:
            return self.ledger.rows(UNEXPLAINED)
        return []
