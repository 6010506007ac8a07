"""An SQLite file that is deleted, replaced or linked under a running service, or loses its WAL.

What was in the file is gone by the operator's own act. After it, a response may only be 2xx if its
event is in the file under that name, and a service that can store nothing must end.
"""

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType

from prove.experiment import Experiment
from prove.fleet import APP, SETTINGS
from prove.workbench import Workbench
from support.ledger_checker import Violation
from support.processes import Serve, StartupFailed

EVENTS_PER_SECOND = 200
REQUESTS_BEFORE = 100
AFTERWARDS_SECONDS = 1.0
END_LIMIT_SECONDS = 10.0
REMOVED = "SQLite files deleted, replaced or linked"
STORED_IDS = "SELECT event_id FROM onceward_events"

Act = Callable[[Path], None]


def vanish(bench: Workbench) -> None:
    """Do each act to the file of a service under load."""
    count = bench.plan.removed_files
    progress = bench.progress("vanished file", count)
    acts = list(ACTS.items())
    with bench.stage("vanished file"):
        for number in range(count):
            name, act = acts[number % len(acts)]
            with (
                bench.server() as server,
                bench.experiment(name, server.create(), is_checked=False) as experiment,
            ):
                FileFault(experiment, name).inject(act)
            progress(number + 1)


def delete_file(path: Path) -> None:
    """Delete the database, as a clean-up job does."""
    path.unlink()


def replace_file(path: Path) -> None:
    """Move a copy over the database, as a restore does."""
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    copy.replace(path)


def delete_wal(path: Path) -> None:
    """Delete the write-ahead log, as someone does who copies only the database."""
    path.with_name(f"{path.name}-wal").unlink()


def link_file(path: Path) -> None:
    """Give the database a second name, under which its lock and its WAL are others."""
    os.link(path, _other_name(path))


ACTS: Mapping[str, Act] = MappingProxyType(
    {
        "deleted file": delete_file,
        "replaced file": replace_file,
        "deleted WAL": delete_wal,
        "linked file": link_file,
    }
)


def _other_name(path: Path) -> Path:
    return path.with_name("other.db")


class FileFault:
    """One act on the file of one service."""

    def __init__(self, experiment: Experiment, name: str) -> None:
        self._experiment = experiment
        self._name = name
        url = experiment.ledger.url
        self._path = Path(url.removeprefix("sqlite:///").partition("?")[0])

    def inject(self, act: Act) -> None:
        """Act under load, let the senders continue, and check the responses that they get."""
        experiment = self._experiment
        experiment.send(10**6, 10**6 / EVENTS_PER_SECOND)
        experiment.wait_until_recovered(REQUESTS_BEFORE)
        act(self._path)
        acted_at = time.time()
        if act is link_file:
            self._start_second()
            time.sleep(AFTERWARDS_SECONDS)  # the senders continue
        else:
            self._expect_end()
        experiment.load_generator.stop()
        experiment.fleet.processes[0].kill()
        self._check_accepted(acted_at)
        experiment.tally[REMOVED] += 1

    def _expect_end(self) -> None:
        """Wait until the service gives up, with an error."""
        process, started = self._experiment.fleet.processes[0], time.monotonic()
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(END_LIMIT_SECONDS)
        if not code:
            outcome = "still runs" if code is None else "ended without an error"
            detail = f"{self._name}: {END_LIMIT_SECONDS:g} s later the service {outcome}"
            self._experiment.findings.add(Violation.NOT_ENDED, detail)
        else:
            seconds = time.monotonic() - started
            self._experiment.add_delay(f"end after a {self._name}", seconds, END_LIMIT_SECONDS)

    def _start_second(self) -> None:
        """Start a service under the second name, which must be refused."""
        url = f"sqlite:///{_other_name(self._path)}"
        with suppress(StartupFailed), Serve(APP, url, forked=True, **SETTINGS):
            detail = f"a second service started as {_other_name(self._path).name}"
            self._experiment.findings.add(Violation.SHARED_FILE, detail)

    def _check_accepted(self, acted_at: float) -> None:
        """Check that each request that was sent after the act and accepted is in the file."""
        workload = self._experiment.history.workload
        accepted = self._experiment.history.accepted_since(acted_at)
        stored = {workload.number_of(event_id) for event_id in self._stored_ids()}
        for number in sorted(accepted - stored):
            detail = f"{workload.event_id(number)} was accepted after the {self._name}"
            self._experiment.findings.add(Violation.LOST, detail, number)

    def _stored_ids(self) -> list[str]:
        """Return the events in the file that has the name now; none if it is unreadable."""
        if not self._path.exists():
            return []
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(self._path)) as connection:
            return [event_id for (event_id,) in connection.execute(STORED_IDS)]
        return []
