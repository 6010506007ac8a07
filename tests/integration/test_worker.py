"""Worker processes: they wake at once, drain in order and survive a job that kills them."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.database import RawDatabase
from support.processes import APPS, Serve, Work, eventually

pytestmark = pytest.mark.every_store

MISCHIEF = APPS / "mischief.py"
PROBE = APPS / "probe.py"
KILLED = "The worker died while it ran this job alone"
COUNTS_FROZEN = """
import gc
from onceward import Inbox, Transaction

inbox = Inbox()


@inbox.at_start
async def create(tx: Transaction):
    await tx.execute("CREATE TABLE notes (event varchar(20))")


@inbox.on("count")
async def count(tx: Transaction):
    await tx.execute("INSERT INTO notes VALUES (:count)", {"count": str(gc.get_freeze_count())})
"""


def notes(raw_db: RawDatabase) -> Counter[str]:
    return Counter(event for (event,) in raw_db.rows("SELECT event FROM notes"))


def test_a_worker_in_another_process_is_woken_at_once(postgres_url: str) -> None:
    with (
        Serve(PROBE, postgres_url, "--workers", "0", forked=True) as service,
        Work(PROBE, postgres_url, forked=True, poll_seconds=30),
    ):
        for number in range(3):
            started = time.monotonic()
            service.accept(f"evt_{number}", "payment.made", {"account": "a", "amount": 1})
            service.wait_until_idle(2)
            assert time.monotonic() - started < 2
            assert service.job(f"evt_{number}")["status"] == "done"


def test_a_requeue_wakes_a_worker_in_another_process_at_once(postgres_url: str) -> None:
    with (
        Serve(PROBE, postgres_url, "--workers", "0", forked=True) as service,
        Work(PROBE, postgres_url, forked=True, poll_seconds=30),
    ):
        service.accept("evt_1", "payment.made", {})
        service.wait_until_idle(2)
        answer = service.requeue(service.job("evt_1")["id"], actor="ann", reason="to see")
        assert answer.status_code == 200
        service.wait_until_idle(2)
        assert service.job("evt_1")["attempts"] == 2


def test_full_collections_do_not_walk_what_was_loaded_at_the_start(
    sqlite_url: str, tmp_path: Path
) -> None:
    """They would block the event loop, and with it receivers and handlers, for 50 ms."""
    app = tmp_path / "app.py"
    app.write_text(COUNTS_FROZEN)
    with Serve(app, sqlite_url, forked=True) as service:
        service.accept("evt_1", "count", {})
        service.wait_until_idle()
    (frozen,) = notes(RawDatabase(sqlite_url))
    assert int(frozen) > 10_000


def test_a_stopped_worker_finishes_running_jobs_and_releases_the_others(
    postgres_url: str, tmp_path: Path
) -> None:
    with Serve(MISCHIEF, postgres_url, "--workers", "0", forked=True) as service:
        service.accept("quick", "slow", {"seconds": 0.0, "touch": str(tmp_path / "quick")})
        with Work(
            MISCHIEF, postgres_url, "--workers", "1", forked=True, poll_seconds=30
        ) as stopping:
            service.wait_until_idle()  # jobs of a quick handler are claimed ahead
            for number in range(3):
                wait = {"seconds": 0.7, "touch": str(tmp_path / f"{number}")}
                service.accept(f"evt_{number}", "slow", wait)
            eventually((tmp_path / "0").exists, "the first handler runs")

            def are_all_claimed() -> bool:
                statuses = Counter(job["status"] for job in service.items("jobs"))
                return statuses == {"done": 1, "in_progress": 3}

            eventually(are_all_claimed, "the others are claimed ahead", 0.5)
            with Work(MISCHIEF, postgres_url, forked=True, poll_seconds=30):
                stopping.terminate()
                eventually((tmp_path / "2").exists, "another worker runs the others", 2)
                assert stopping.wait() == 0
                assert RawDatabase(postgres_url).count("onceward.workers") == 1
                service.wait_until_idle()
        jobs = service.items("jobs")
    assert [(job["status"], job["attempts"]) for job in jobs] == [("done", 1)] * 4
    raw_db = RawDatabase(postgres_url)
    assert notes(raw_db) == {"quick": 1, "evt_0": 1, "evt_1": 1, "evt_2": 1}
    assert raw_db.count("onceward.attempts") == 0
    assert raw_db.value("SELECT count(*) FROM onceward.jobs WHERE solo") == 0


def test_a_service_on_sqlite_drains(sqlite_url: str, tmp_path: Path) -> None:
    started = tmp_path / "0"
    with Serve(MISCHIEF, sqlite_url, "--workers", "1", forked=True) as service:
        for number in range(2):
            wait = {"seconds": 0.5, "touch": str(tmp_path / f"{number}")}
            service.accept(f"evt_{number}", "slow", wait)
        eventually(started.exists, "the first handler runs")
        service.terminate()
        assert service.wait() == 0
    raw_db = RawDatabase(sqlite_url)
    assert notes(raw_db) == {"evt_0": 1}
    jobs = "SELECT status, attempts, solo FROM onceward.jobs ORDER BY id"
    assert raw_db.rows(jobs) == [("done", 1, 0), ("queued", 0, 0)]
    with Serve(MISCHIEF, sqlite_url, forked=True) as service:
        service.wait_until_idle()
    assert notes(raw_db) == {"evt_0": 1, "evt_1": 1}


def test_a_pending_request_is_answered_before_the_service_stops(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    with Serve(MISCHIEF, postgres_url, forked=True) as service, ThreadPoolExecutor(1) as sender:
        with raw_db.connection() as connection:
            connection.execute("LOCK TABLE onceward.events")
            waiting = sender.submit(service.post, "evt_0", "other", {})
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            eventually(lambda: raw_db.value(blocked) > 0, "a request waits for the ledger")
            service.terminate()
            time.sleep(0.2)
        assert waiting.result().status_code == 202
        assert service.wait() == 0


def test_a_handler_that_outlasts_the_drain_is_cancelled_and_released(
    database_url: str, tmp_path: Path
) -> None:
    wait = {"seconds": 60, "touch": str(tmp_path / "started")}
    with Serve(MISCHIEF, database_url, forked=True, drain_seconds=0.3) as service:
        service.accept("evt_0", "slow", wait)
        eventually((tmp_path / "started").exists, "the handler runs")
        started = time.monotonic()
        service.terminate()
        assert service.wait() == 0
        assert time.monotonic() - started < 5
        assert "of handler 'slow' was interrupted, because it ran for longer than" in service.log
    raw_db = RawDatabase(database_url)
    assert notes(raw_db) == {}
    state = "SELECT status, attempts FROM onceward.jobs"
    assert raw_db.rows(state) == [("queued", 0)]
    assert raw_db.value("SELECT count(*) FROM onceward.jobs WHERE solo") == 0
    (tmp_path / "started").unlink()
    with Serve(MISCHIEF, database_url, forked=True, poll_seconds=30):  # a lease lasts 60 s
        eventually((tmp_path / "started").exists, "the handler runs again at once", 2)


def test_a_job_that_kills_its_worker_is_failed_and_its_neighbours_are_done(
    database_url: str,
) -> None:
    raw_db = RawDatabase(database_url)
    with Serve(MISCHIEF, database_url, "--workers", "0", forked=True) as service:
        for number in range(12):
            service.accept(f"evt_{number}", "deadly" if number == 6 else "plain", {})
    deaths, log = 0, ""
    while raw_db.value("SELECT count(*) FROM onceward.jobs WHERE status = 'queued'"):
        with Serve(MISCHIEF, database_url, forked=True, lease_seconds=0.4, poll_seconds=0.1) as (
            service
        ):
            eventually(
                lambda: not service.running or service.is_idle(),
                "the service dies or has no more jobs",
            )
            deaths += not service.running
            log += service.log
            assert deaths < 10
    with Serve(MISCHIEF, database_url, "--workers", "0", forked=True) as service:
        jobs = {job["external_event_id"]: job for job in service.items("jobs")}
    deadly = jobs.pop("evt_6")
    assert (deadly["status"], deadly["failure_type"]) == ("failed", "exhausted")
    assert (deadly["attempts"], deadly["last_error"]) == (2, KILLED)
    assert f"job {deadly['id']} of handler '{deadly['handler']}' runs alone, because" in log
    assert deaths == 3  # once beside others, which counts no attempt, and twice alone
    assert {(job["status"], job["attempts"]) for job in jobs.values()} == {("done", 1)}
    assert notes(raw_db) == dict.fromkeys(jobs, 1)


def test_a_job_that_blocks_its_process_loses_its_lease_and_is_failed(
    postgres_url: str, tmp_path: Path
) -> None:
    fast: dict[str, Any] = {"lease_seconds": 0.8, "poll_seconds": 0.1}
    raw_db = RawDatabase(postgres_url)
    with Serve(MISCHIEF, postgres_url, "--workers", "0", forked=True) as service:
        wait = {"seconds": 1.7, "touch": str(tmp_path / "started")}
        service.accept("evt_0", "blocking", wait)
        for number in range(1, 8):
            service.accept(f"evt_{number}", "plain", {})
        with Work(MISCHIEF, postgres_url, "--workers", "1", forked=True, **fast) as first:
            eventually((tmp_path / "started").exists, "the handler blocks")
            with (
                Work(MISCHIEF, postgres_url, forked=True, **fast) as second,
                Work(MISCHIEF, postgres_url, forked=True, **fast) as third,
            ):
                service.wait_until_idle()
                service.accept("evt_8", "plain", {})
                service.wait_until_idle()
                for worker in (first, second, third):
                    worker.terminate()
                assert [worker.wait() for worker in (first, second, third)] == [0, 0, 0]
        jobs = {job["external_event_id"]: job for job in service.items("jobs")}
    blocking = jobs.pop("evt_0")
    assert (blocking["status"], blocking["failure_type"]) == ("failed", "exhausted")
    assert (blocking["attempts"], blocking["last_error"]) == (2, KILLED)
    assert {(job["status"], job["attempts"]) for job in jobs.values()} == {("done", 1)}
    assert notes(raw_db) == dict.fromkeys(jobs, 1)
