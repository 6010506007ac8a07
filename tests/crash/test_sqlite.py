"""SQLite's file is locked, its disk is full, its process is killed; acknowledged events survive."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.client_history import Outcome
from support.database import RawDatabase
from support.disks import DiskUnavailable, fill, small_disk
from support.processes import APPS, Serve, eventually
from tests.payment_history import History, Payment, check_acknowledged
from tests.senders import accepted, finish, load

PROBE = APPS / "probe.py"
FAST: dict[str, Any] = {
    "commit_timeout_seconds": 0.5,
    "retry_base_seconds": 0.2,
    "max_attempts": 20,
}


def test_requests_get_a_503_while_another_process_locks_the_file(
    sqlite_url: str,
) -> None:
    history = History()
    with Serve(PROBE, sqlite_url, forked=True, **FAST) as service:
        history.send(service, Payment("malformed", None))
        service.wait_until_idle()
        failed = service.job("malformed")["id"]
        with service.raw_db.connection() as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            for number in range(3):
                assert history.send(service, Payment(f"evt_{number}", 5)) is Outcome.UNKNOWN
            assert service.requeue(failed, actor="ann", reason="retry").status_code == 503
            assert service.http.get("/healthz").status_code == 200
            assert service.job("malformed")["status"] == "failed"  # reads still work
        finish(service, history)
        assert service.items("audit") == []


@pytest.fixture
def disk() -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            mount = stack.enter_context(small_disk(16))
        except DiskUnavailable as reason:
            pytest.skip(str(reason))
        yield mount


def test_requests_get_a_503_while_the_disk_is_full(disk: Path) -> None:
    history = History()
    url = f"sqlite:///{disk / 'onceward.db'}"
    with Serve(PROBE, url, forked=True, **FAST) as service:
        with load(service, history):
            eventually(accepted(history, 20), "20 requests are accepted")
            filler = fill(disk)
            eventually(lambda: history.unknown > 8, "requests are rejected")
            assert service.http.get("/healthz").status_code == 200
            check_acknowledged(service.raw_db, history)
            filler.unlink()
            before = history.accepted
            eventually(accepted(history, before + 20), "the service recovers")
        finish(service, history)


def test_a_response_arrives_if_the_process_dies_right_after_sending_it(sqlite_url: str) -> None:
    failpoint = "receive.answered:kill:1"
    with Serve(PROBE, sqlite_url, failpoints=failpoint, forked=True) as service:
        assert service.accept("evt_1", "probe", {})["duplicate"] is False
        assert service.wait() == -signal.SIGKILL
    assert RawDatabase(sqlite_url).count("onceward.events") == 1


def test_acknowledged_events_survive_kills_under_load(sqlite_url: str) -> None:
    history, raw_db = History(), RawDatabase(sqlite_url)
    for round_number in range(5):
        with Serve(PROBE, sqlite_url, forked=True, **FAST) as service:
            enough = history.accepted + 30 + 7 * round_number
            with load(service, history, name=f"{round_number}"):
                eventually(accepted(history, enough), "more requests are accepted")
                service.kill()
        check_acknowledged(raw_db, history)
    with Serve(PROBE, sqlite_url, forked=True, **FAST) as service:
        finish(service, history)
    assert history.unknown > 0


def test_a_service_ends_when_an_older_copy_replaces_its_file(
    sqlite_url: str, tmp_path: Path
) -> None:
    file, copy = tmp_path / "onceward.db", tmp_path / "copy.db"
    history = History()
    with Serve(PROBE, sqlite_url, "--workers", "0", forked=True, **FAST) as service:
        service.accept("copied", "probe", {})
        service.raw_db.rows(f"VACUUM INTO '{copy}'")
        with load(service, history):
            eventually(accepted(history, 20), "20 requests are accepted")
            copy.rename(file)
            before = history.accepted
            assert service.wait() == 2
        # Each of the four senders may have had an answer under way.
        assert history.accepted <= before + 4
        assert "onceward.db was replaced while the inbox used it" in service.log
        assert "onceward: " in service.log
    with Serve(PROBE, sqlite_url, forked=True, **FAST) as service:
        assert service.accept("copied", "probe", {})["duplicate"] is True
        assert service.accept("new", "probe", {})["duplicate"] is False


def test_a_service_without_traffic_notices_that_its_file_is_gone(
    sqlite_url: str, tmp_path: Path
) -> None:
    with Serve(PROBE, sqlite_url, "--workers", "0", forked=True, **FAST) as service:
        assert service.http.get("/readyz").status_code == 200
        (tmp_path / "onceward.db").unlink()
        assert service.http.get("/readyz").status_code == 503
        assert service.wait() == 2
        assert "onceward.db was deleted or moved while the inbox used it" in service.log
