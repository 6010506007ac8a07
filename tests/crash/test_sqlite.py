"""SQLite's file is locked, its disk full, its process killed: what was acknowledged is kept."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.database import RawDatabase
from support.processes import APPS, Serve, eventually
from tests.checker import Journal, Sending, check_acknowledged
from tests.senders import accepted, finish, load

PROBE = APPS / "probe.py"
FAST: dict[str, Any] = {
    "commit_timeout_seconds": 0.5,
    "retry_base_seconds": 0.2,
    "max_attempts": 20,
}


def test_a_file_that_another_process_locks_is_answered_503_until_it_is_free(
    sqlite_url: str,
) -> None:
    journal = Journal()
    with Serve(PROBE, sqlite_url, forked=True, **FAST) as service:
        journal.send(service, Sending("malformed", None))
        service.wait_until_at_rest()
        failed = service.job("malformed")["id"]
        with service.raw_db.connection() as other:
            other.execute("BEGIN IMMEDIATE")
            for number in range(3):
                assert journal.send(service, Sending(f"evt_{number}", 5)) == "unknown"
            assert service.requeue(failed, actor="ann", reason="to see").status_code == 503
            assert service.http.get("/healthz").status_code == 200
            assert service.job("malformed")["status"] == "failed"  # it can still be read
        finish(service, journal)
        assert service.items("audit") == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["/bin/umount", "--lazy", folder], check=True)


def test_a_full_disk_is_answered_503_until_there_is_room_again(small_disk: Path) -> None:
    journal = Journal()
    url = f"sqlite:///{small_disk / 'onceward.db'}"
    with Serve(PROBE, url, forked=True, **FAST) as service:
        with load(service, journal):
            eventually(accepted(journal, 20), "it runs")
            filler = _fill(small_disk)
            eventually(lambda: journal.ids("unknown").total() > 8, "it is refused")
            assert service.http.get("/healthz").status_code == 200
            check_acknowledged(service.raw_db, journal)
            filler.unlink()
            so_far = journal.ids("ok").total()
            eventually(accepted(journal, so_far + 20), "it works again")
        finish(service, journal)


def _fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 4_096):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return filler


def test_a_process_that_dies_right_after_an_answer_has_given_it(sqlite_url: str) -> None:
    trap = "receive.answered:kill:1"
    with Serve(PROBE, sqlite_url, failpoints=trap, forked=True) as service:
        assert service.accept("evt_1", "probe", {})["duplicate"] is False
        assert service.wait() == -signal.SIGKILL
    assert RawDatabase(sqlite_url).count("onceward.events") == 1


def test_what_was_acknowledged_survives_kills_under_load(sqlite_url: str) -> None:
    journal, raw_db = Journal(), RawDatabase(sqlite_url)
    for round_number in range(5):
        with Serve(PROBE, sqlite_url, forked=True, **FAST) as service:
            so_far = journal.ids("ok").total()
            with load(service, journal, name=f"{round_number}"):
                eventually(accepted(journal, so_far + 30 + 7 * round_number), "it runs")
                service.kill()
        check_acknowledged(raw_db, journal)
    with Serve(PROBE, sqlite_url, forked=True, **FAST) as service:
        finish(service, journal)
    assert journal.ids("unknown").total() > 0
