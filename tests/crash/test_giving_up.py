"""Workers are killed around on_failed and in a batch; each commits once, or not at all."""

from typing import Any

import pytest

from onceward.model.jobs import DIED_IN_ON_FAILED, WORKER_DIED
from support.database import RawDatabase
from support.processes import APPS, Serve, eventually

APP = APPS / "gives_up.py"
MAX_DEATHS = 8
STATEMENT = "handle.statement:kill:3"
"""The app creates two tables first."""


def send(url: str, *events: tuple[str, str]) -> None:
    with Serve(APP, url, "--workers", "0", forked=True) as service:
        for event_id, type_ in events:
            service.accept(event_id, type_, {})


def run_until_idle(url: str, failpoints: str = "") -> int:
    """Run workers until no job is left; return how many died. The first one has failpoints."""
    fast: dict[str, Any] = {"lease_seconds": 0.4, "poll_seconds": 0.1, "retry_base_seconds": 0.05}
    raw_db = RawDatabase(url)
    deaths = 0
    while raw_db.value("SELECT count(*) FROM onceward.jobs WHERE status = 'queued'"):
        with Serve(APP, url, forked=True, failpoints=failpoints, **fast) as service:
            eventually(
                lambda each=service: not each.running or each.is_idle(),  # type: ignore[misc] # bound at once
                "the service dies or has no more jobs",
            )
            deaths += not service.running
        failpoints = ""
        assert deaths < MAX_DEATHS
    return deaths


def job(raw_db: RawDatabase) -> tuple[object, ...]:
    (row,) = raw_db.rows("SELECT status, failure_type, attempts, last_error FROM onceward.jobs")
    return row


def test_the_death_of_a_worker_in_the_last_attempt_commits_on_failed_once(
    database_url: str, raw_db: RawDatabase
) -> None:
    send(database_url, ("evt_1", "deadly.once"))
    assert run_until_idle(database_url) == 3  # once beside others, and twice alone
    assert job(raw_db) == ("failed", "exhausted", 2, WORKER_DIED)
    assert raw_db.rows("SELECT event, error FROM notes") == [("evt_1", "WorkerDied")]


def test_a_death_in_on_failed_ends_the_job_without_it(
    database_url: str, raw_db: RawDatabase
) -> None:
    send(database_url, ("evt_1", "deadly.twice"))
    assert run_until_idle(database_url) == 4
    assert job(raw_db) == ("failed", "exhausted", 2, DIED_IN_ON_FAILED)
    assert raw_db.count("notes") == 0


@pytest.mark.parametrize(
    "failpoint",
    ["claim.leased:kill:1", STATEMENT, "settle.written:kill:1"],
)
def test_a_kill_around_on_failed_commits_it_once(
    database_url: str, raw_db: RawDatabase, failpoint: str
) -> None:
    send(database_url, ("evt_1", "refused"))
    assert run_until_idle(database_url, failpoint) == 1
    assert job(raw_db)[0] == "failed"
    assert raw_db.rows("SELECT event, error FROM notes") == [("evt_1", "PermanentError")]


@pytest.mark.parametrize(
    "failpoint", ["handle.returned:kill:1", STATEMENT, "settle.written:kill:1"]
)
def test_a_kill_in_a_batch_commits_each_event_once(
    database_url: str, raw_db: RawDatabase, failpoint: str
) -> None:
    ids = [f"evt_{number}" for number in range(20)]
    send(database_url, *((event_id, "plain") for event_id in ids))
    assert run_until_idle(database_url, failpoint) == 1
    assert sorted(event for (event,) in raw_db.rows("SELECT event FROM runs")) == sorted(ids)
    assert raw_db.rows("SELECT DISTINCT status, attempts FROM onceward.jobs") == [("done", 1)]
