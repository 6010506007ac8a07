"""Faults of the database and its disk: crashes, lost COMMIT responses, a full disk, power cuts."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from prove.checker import check_copy
from prove.experiment import Experiment
from prove.process_faults import Target
from support.database import RawDatabase
from support.disks import ImageDisk, fill
from support.ledger_checker import Violation
from support.postgres import Cluster
from support.processes import ConditionTimeout, eventually, process_state
from support.proxy import Mode, Proxy

LOSS_SECONDS = 5.0
MIN_REJECTIONS = 8
FULL_DISK_SECONDS = 0.3
IN_FLIGHT_SECONDS = 0.05

Progress = Callable[[int], None]


def crash_server(experiment: Experiment, cluster: Cluster, target: Target) -> None:
    """Crash and restart PostgreSQL under load. The service must recover without help."""
    deadline = time.monotonic() + target.limit_seconds
    for number in range(target.count):
        if time.monotonic() > deadline:
            break
        if not experiment.wait_until_recovered(target.rng.randrange(10, 100)):
            break
        cluster.crash()
        time.sleep(target.rng.uniform(0.0, 0.2))  # the length of the outage
        cluster.start()
        if not experiment.wait_until_recovered():
            break
        experiment.supervise()
        experiment.tally["PostgreSQL crashes"] += 1
        target.show(number + 1)


def lose_commits(experiment: Experiment, proxy: Proxy, count: int, progress: Progress) -> None:
    """Drop the response to a COMMIT, or to any request, and cut the connection."""
    for number in range(count):
        if number % 2:
            mode, name = Mode.LOSE_COMMITS, "COMMIT responses lost"
        else:
            mode, name = Mode.LOSE_RESPONSES, "database responses lost"
        losses = proxy.losses
        proxy.lose(mode)
        with suppress(ConditionTimeout):  # there may be nothing to commit
            eventually(lambda: proxy.losses > losses, "a response is lost", LOSS_SECONDS)  # noqa: B023 - called at once
        proxy.lose(Mode.FORWARD)
        experiment.tally[name] += proxy.losses - losses
        experiment.wait_until_recovered()
        progress(number + 1)


def fill_disk(experiment: Experiment, disk: Path, restart: Callable[[], None]) -> None:
    """Fill the disk until requests are rejected, then free it. The service must recover."""
    rejected_before = experiment.history.unknown
    filler = fill(disk)
    was_rejected = experiment.expect(
        lambda: experiment.history.unknown >= rejected_before + MIN_REJECTIONS,
        "requests are rejected while the disk is full",
        LOSS_SECONDS * 2,
        otherwise=Violation.NOT_REJECTED,
    )
    time.sleep(FULL_DISK_SECONDS)  # how long the disk stays full
    rejected = experiment.history.unknown - rejected_before
    experiment.tally["requests rejected on a full disk"] += rejected
    filler.unlink()
    restart()
    if experiment.wait_until_recovered() and was_rejected:
        experiment.tally["full disks survived"] += 1


def cut_power(
    experiment: Experiment, disk: ImageDisk, cluster: Cluster | None, database: str
) -> None:
    """Suspend everything, copy the disk, and check the copy for every acknowledged event.

    `database` is the path on the disk: SQLite's file, or the folder of the PostgreSQL server.
    """
    with _suspended(experiment, cluster):
        # Responses sent before the suspension may still be on their way to the senders.
        time.sleep(IN_FLIGHT_SECONDS)
        requests = len(experiment.history)
        copy = disk.copy()
        experiment.load_generator.limit = 0  # checking the copy takes a while
    with disk.mounted(copy) as mount, ExitStack() as stack:
        if cluster is None:
            ledger = RawDatabase(f"sqlite:///{mount / database}")
        else:
            # The copy is only read, and then thrown away: fsync would cost time for nothing.
            server = Cluster(existing=mount / database, settings={"fsync": "off"})
            recovered = stack.enter_context(server)
            ledger = RawDatabase(recovered.url(_database_name(experiment.ledger.url)))
        experiment.add(check_copy(ledger, experiment.history, requests), ledger)
    acknowledged = len(experiment.history.acknowledged(requests))
    experiment.tally["acknowledged before a power cut"] = acknowledged
    experiment.tally["power cuts"] += 1


@contextmanager
def _suspended(experiment: Experiment, cluster: Cluster | None) -> Iterator[None]:
    """Suspend every process of the service and its database, and resume them at the end."""
    pids = [process.pid for process in experiment.fleet.processes]
    try:
        _signal(pids, signal.SIGSTOP)
        if cluster is not None:
            postmaster, *_ = cluster.pids
            _signal([postmaster], signal.SIGSTOP)  # from now on it starts no more processes
            eventually(lambda: _is_halted(postmaster), "the postmaster is suspended")
            _signal(cluster.pids, signal.SIGSTOP)
            pids += cluster.pids
        eventually(lambda: all(map(_is_halted, pids)), "every process is suspended")
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a backend may have ended, and been reaped
            os.kill(pid, number)


def _is_halted(pid: int) -> bool:
    return process_state(pid) in "TZ"


def _database_name(url: str) -> str:
    return url.rpartition("/")[2]
