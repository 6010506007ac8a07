"""The processes of one service on one database: each that is killed is replaced by its like."""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from prove.client import Address
from support.processes import ROOT, Died, Process, Serve, Work

APP = ROOT / "prove" / "app.py"
LEASE_LOST = re.compile(r"leases? (?:was|were) lost")
START_TRIES = 5

# A job whose worker is killed again and again is not to be parked for that.
SETTINGS: dict[str, Any] = {
    "lease_seconds": 0.6,
    "poll_seconds": 0.1,
    "max_attempts": 100,
    "retry_base_seconds": 0.05,
    "commit_timeout_seconds": 2.0,
}


@dataclass(frozen=True)
class Shape:
    """How many processes there are of each sort. Without workers, the receivers work as well."""

    receivers: int = 1
    workers: int = 0


class ServiceFleet:
    """All of them. They run when it is entered, and are dead when it is left."""

    def __init__(self, url: str, shape: Shape, *options: str, **settings: float | str) -> None:
        self._url = url
        self._shape = shape
        self._options = options
        self._settings: dict[str, Any] = SETTINGS | settings
        self._pool = ThreadPoolExecutor(shape.receivers + shape.workers)
        self.places: list[Process] = []
        self._living: list[Process] = []
        """All that were started, also those that never got to their place."""
        self.accidents: list[str] = []
        """The logs of processes that ended by themselves."""

    def __enter__(self) -> Self:
        try:
            self.places = list(self._pool.map(self._start, range(self.size)))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        with ExitStack() as graves:
            for process in self._living:
                graves.callback(process.close)

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self._shape.receivers + self._shape.workers

    @property
    def workers(self) -> range:
        """The places of the processes that run handlers."""
        return range(self._shape.receivers if self._shape.workers else 0, self.size)

    def is_receiver(self, place: int) -> bool:
        """Whether requests are sent to the process in this place."""
        return place < self._shape.receivers

    def addresses(self) -> list[Address]:
        """Where requests can be sent to."""
        found = []
        for process in self.places[: self._shape.receivers]:
            parts = urlsplit(process.facts["address"])
            found.append((parts.hostname or "", parts.port or 0))
        return found

    def kill(self, *places: int) -> None:
        """SIGKILL, all at once, and start others in their places."""
        for place in places:
            with suppress(ProcessLookupError):
                os.kill(self.places[place].pid, signal.SIGKILL)
        for place in places:
            self.places[place].close()
            self._living.remove(self.places[place])
        for place, process in zip(places, self._pool.map(self._start, places), strict=True):
            self.places[place] = process

    def change(self, **settings: float | str) -> None:
        """Go on with other settings, in new processes; the old ones end in good order."""
        self._settings |= settings
        for process in self.places:
            process.terminate()
        for process in self.places:
            process.wait()
        self.kill(*range(self.size))

    def look_after(self) -> None:
        """Note and replace what ended by itself: nothing ever should."""
        for place, process in enumerate(self.places):
            if not process.running:
                self.accidents.append(process.log[-4_000:])
                self.kill(place)

    def lost_leases(self) -> list[str]:
        """What the living processes say of leases that they lost."""
        return [
            line
            for process in self.places
            for line in process.log.splitlines()
            if LEASE_LOST.search(line)
        ]

    def _start(self, place: int) -> Process:
        start = self._serve if self.is_receiver(place) else self._work
        for _ in range(START_TRIES - 1):
            with suppress(Died):
                return self._noted(start())
            time.sleep(0.2)  # the database may be in recovery
        return self._noted(start())

    def _noted(self, process: Process) -> Process:
        self._living.append(process)
        return process

    def _serve(self) -> Process:
        options = ["--workers", "0"] if self._shape.workers else []
        return Serve(APP, self._url, *options, *self._options, forked=True, **self._settings)

    def _work(self) -> Process:
        return Work(APP, self._url, *self._options, forked=True, **self._settings)
