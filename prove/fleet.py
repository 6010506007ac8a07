"""The processes of one service on one database. A process that is killed is replaced."""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from prove.client import Address
from support.processes import ROOT, Process, Serve, StartupFailed, Work, failpoint_in

APP = ROOT / "prove" / "app.py"
LEASE_LOST = re.compile(r"leases? (?:was|were) lost")
START_ATTEMPTS = 5

# Kills must not exhaust a job's attempts. Of thousands of jobs that fail at random, some fail ten
# times in a row: without the limit, the next delay would outlast the time to drain.
SETTINGS: dict[str, Any] = {
    "lease_seconds": 0.6,
    "poll_seconds": 0.1,
    "max_attempts": 100,
    "retry_base_seconds": 0.05,
    "retry_max_seconds": 2.0,
    "commit_timeout_seconds": 2.0,
}


@dataclass(frozen=True)
class FleetSize:
    """How many processes of each role there are. Without workers, the receivers work as well."""

    receivers: int = 1
    workers: int = 0

    @property
    def total(self) -> int:
        """Return the number of processes."""
        return self.receivers + self.workers


class ServiceFleet:
    """All processes of a service. They run between `__enter__` and `__exit__`.

    A process is addressed by its slot; the receivers come first.
    """

    def __init__(
        self,
        url: str,
        size: FleetSize,
        *options: str,
        app: Path = APP,
        environment: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        **settings: float | str,
    ) -> None:
        self.size = size
        self.processes: list[Process] = []
        """The process in each slot."""
        self.unexpected_exits: list[str] = []
        """The logs of processes that exited on their own."""
        self.failpoint_kills: Counter[str] = Counter()
        """How often processes died at each failpoint with which they were armed."""
        self._armed: dict[int, str] = {}
        self._url = url
        self._options = options
        self._app = app
        self._start_options: dict[str, Any] = {"forked": True, "environment": variables}
        if environment is not None:
            # A forked process has its libraries already: a variable of the linker comes too late.
            linked = {"PYTHONPATH": str(ROOT), **environment, **(variables or {})}
            self._start_options = {"forked": False, "environment": linked}
        self._settings: dict[str, Any] = SETTINGS | settings
        self._pool = ThreadPoolExecutor(size.total)
        self._started: list[Process] = []
        """Every process that still has to be closed, including ones without a slot."""

    def __enter__(self) -> Self:
        try:
            self.processes = list(self._pool.map(self._start, range(self.size.total)))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        with ExitStack() as stack:
            for process in self._started:
                stack.callback(process.close)

    @property
    def worker_slots(self) -> range:
        """Return the slots of the processes that run handlers."""
        return range(self.size.receivers if self.size.workers else 0, self.size.total)

    def is_receiver(self, slot: int) -> bool:
        """Return whether requests are sent to the process in this slot."""
        return slot < self.size.receivers

    def addresses(self) -> list[Address]:
        """Return the addresses of the receivers."""
        addresses = []
        for process in self.processes[: self.size.receivers]:
            parts = urlsplit(process.startup_info["address"])
            addresses.append((parts.hostname or "", parts.port or 0))
        return addresses

    def kill(self, *slots: int) -> None:
        """SIGKILL the processes in these slots, all at once, and replace them."""
        for slot in slots:
            with suppress(ProcessLookupError):
                os.kill(self.processes[slot].pid, signal.SIGKILL)
        for slot in slots:
            self.processes[slot].close()
            self._started.remove(self.processes[slot])
        for slot, process in zip(slots, self._pool.map(self._start, slots), strict=True):
            self.processes[slot] = process

    def replace(self, slot: int, *, failpoints: str) -> None:
        """Kill the process in a slot, and replace it by one that dies at a failpoint."""
        self._armed[slot] = failpoints
        self.kill(slot)

    def restart(self, **settings: float | str) -> None:
        """Shut down every process gracefully, and start new ones with changed settings."""
        self._settings |= settings
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        self.kill(*range(self.size.total))

    def replace_exited(self) -> None:
        """Replace processes that exited on their own, and keep their logs as evidence."""
        for slot, process in enumerate(self.processes):
            if not process.running:
                if point := process.failpoint:
                    self.failpoint_kills[point] += 1
                else:
                    self.unexpected_exits.append(process.log[-4_000:])
                self.kill(slot)

    def is_ready(self) -> bool:
        """Return whether every receiver that runs says that it is ready."""
        return all(receiver.is_ready() for receiver in self.receivers)

    @property
    def receivers(self) -> list[Serve]:
        """Return the processes that receive, without those that have ended."""
        return [each for each in self.processes if isinstance(each, Serve) and each.running]

    def lost_leases(self) -> list[str]:
        """Return the log lines in which running processes report a lost lease."""
        return [
            line
            for process in self.processes
            for line in process.log.splitlines()
            if LEASE_LOST.search(line)
        ]

    def _start(self, slot: int) -> Process:
        start = self._start_receiver if self.is_receiver(slot) else self._start_worker
        failpoints = self._armed.pop(slot, "")
        for _ in range(START_ATTEMPTS - 1):
            try:
                return self._register(start(failpoints))
            except StartupFailed as failure:
                if point := failpoint_in(str(failure)):
                    self.failpoint_kills[point] += 1
            failpoints = ""
            time.sleep(0.2)  # the database may be in recovery
        return self._register(start(""))

    def _register(self, process: Process) -> Process:
        self._started.append(process)
        return process

    def _start_receiver(self, failpoints: str) -> Process:
        options = ["--workers", "0"] if self.size.workers else []
        options += self._options
        return self._run(Serve, failpoints, *options)

    def _start_worker(self, failpoints: str) -> Process:
        return self._run(Work, failpoints, *self._options)

    def _run(self, command: type[Serve] | type[Work], failpoints: str, *options: str) -> Process:
        return command(
            self._app,
            self._url,
            *options,
            failpoints=failpoints,
            **self._start_options,
            **self._settings,
        )
