"""The store lets the service down: answers lost in COMMIT, a full disk, the power cut."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from prove.checker import Rule, check_copy
from prove.disks import ImageDisk, fill
from prove.timeline import told
from prove.trial import Trial
from support.database import RawDatabase
from support.postgres import Cluster
from support.processes import TooLate, eventually
from support.proxy import Mode, Proxy

LOSS_SECONDS = 5.0
UNKNOWN_ENOUGH = 8
HOLD_SECONDS = 0.3
ANSWERS_UNDER_WAY_SECONDS = 0.05

Progress = Callable[[int], None]


def lose_commits(trial: Trial, proxy: Proxy, count: int, progress: Progress) -> None:
    """Lose the answer to a COMMIT, a handler's or the recorder's, and cut the connection."""
    for number in range(count):
        mode = Mode.LOSE_COMMITS if number % 2 else Mode.LOSE_ANSWERS
        so_far = proxy.losses
        proxy.lose(mode)
        with suppress(TooLate):  # nobody may commit just now
            eventually(lambda: proxy.losses > so_far, "an answer is lost", LOSS_SECONDS)  # noqa: B023 - called here only
        proxy.lose(Mode.FORWARD)
        handlers = "answers to a COMMIT lost" if number % 2 else "answers of any sort lost"
        trial.tally[handlers] += proxy.losses - so_far
        trial.wait_until_back()
        progress(number + 1)


def fill_disk(trial: Trial, disk: Path, restart: Callable[[], None]) -> None:
    """Leave no room: requests are answered 503. With room again, it all goes on."""
    so_far = trial.journal.unknown
    filler = fill(disk)
    refused = trial.wait_for(
        lambda: trial.journal.unknown >= so_far + UNKNOWN_ENOUGH,
        Rule.NOT_REFUSED,
        "the disk is full and requests are refused",
        LOSS_SECONDS * 2,
    )
    time.sleep(HOLD_SECONDS)  # it stays full for a while
    trial.tally["requests refused on a full disk"] += trial.journal.unknown - so_far
    filler.unlink()
    restart()
    if trial.wait_until_back() and refused:
        trial.tally["full disks survived"] += 1


def cut_power(trial: Trial, disk: ImageDisk, cluster: Cluster | None, ledger: str) -> None:
    """Freeze everything, take what is on the disk, and see whether it holds what was acknowledged.

    `ledger` is where the database is on the disk: a file, or a folder of PostgreSQL's.
    """
    with _frozen(trial, cluster):
        # What was answered before the freeze may be on its way to the senders, and has no sign.
        time.sleep(ANSWERS_UNDER_WAY_SECONDS)
        attempts = len(trial.journal)
        copy = disk.copy()
        trial.sender.limit = 0  # the look at the copy takes its time
    with disk.mounted(copy) as place, ExitStack() as graves:
        if cluster is None:
            raw_db = RawDatabase(f"sqlite:///{place / ledger}")
        else:
            # It is only read, and thrown away.
            server = Cluster(found=place / ledger, settings={"fsync": "off"})
            recovered = graves.enter_context(server)
            raw_db = RawDatabase(recovered.url(_name_of(trial.ledger.url)))
        found = check_copy(raw_db, trial.journal, attempts)
        trial.findings.counts += found.counts
        trial.findings.items += [told(item, raw_db, trial.journal) for item in found.items]
        trial.tally["acknowledged before a power cut"] = len(trial.journal.acknowledged(attempts))
    trial.tally["power cuts"] += 1


@contextmanager
def _frozen(trial: Trial, cluster: Cluster | None) -> Iterator[None]:
    """Stop every process of the service and of its database, and wait until they stand still."""
    pids = [process.pid for process in trial.town.places]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        if cluster is not None:
            first, *_ = cluster.pids
            os.kill(first, signal.SIGSTOP)  # it makes no more processes from now on
            eventually(lambda: _stands(first), "the server stands still")
            for pid in cluster.pids:
                os.kill(pid, signal.SIGSTOP)
            pids += cluster.pids
        eventually(lambda: all(map(_stands, pids)), "everything stands still")
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _stands(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in "TZ"


def _name_of(url: str) -> str:
    return url.rpartition("/")[2]
