"""A worker that dies in the last attempt of a job does not lose its on_failed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onceward import Event, Transaction
from onceward.errors import WorkerDied
from onceward.model.jobs import (
    DIED_IN_ON_FAILED,
    WORKER_DIED,
    FailureType,
    HandlerEntry,
    JobStatus,
)
from onceward.ports import Store
from support.database import RawDatabase
from tests.conformance.test_giving_up import ENTRY, make_runner, note, notes, run_next
from tests.factories import ACT, EVERYTHING, arrival, claim, job_item, lease, opened, record


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with opened(database_url, handlers=[ENTRY]) as store:
        RawDatabase(database_url).rows("CREATE TABLE notes (text varchar(255))")
        yield store


async def died_in_last_attempt(store: Store, raw_db: RawDatabase) -> int:
    """Let workers die until the attempts of a job are used up; return the job."""
    await record(store, arrival("evt_1"))
    (job,) = (await lease(store)).jobs
    raw_db.expire_leases()
    for _ in range(2):
        await claim(store)
        raw_db.make_due()
        await lease(store, solo=True, worker="victim")
        raw_db.expire_leases()
    await claim(store)
    return job.id


async def test_the_death_of_the_last_worker_does_not_lose_it(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    errors = []

    async def keep(event: Event[Any], tx: Transaction, error: BaseException) -> None:
        errors.append(error)
        await note(event, tx, error)

    async def run_again(event: Event[Any]) -> None:
        pytest.fail("the handler runs once more than it may")

    job = await died_in_last_attempt(store, raw_db)
    item = await job_item(store, job)
    assert (item.status, item.attempts, item.last_error) == (JobStatus.QUEUED, 2, WORKER_DIED)
    item = await run_next(store, make_runner(store, keep, run_again), solo=True)
    assert (item.status, item.failure_type, item.attempts, item.last_error) == (
        JobStatus.FAILED,
        FailureType.EXHAUSTED,
        2,
        WORKER_DIED,
    )
    assert "failed for good after 2 attempts (exhausted)" in caplog.text
    assert [type(error) for error in errors] == [WorkerDied]
    assert notes(raw_db) == [f"evt_1: {WORKER_DIED}"]
    assert raw_db.rows("SELECT number FROM onceward.attempts ORDER BY number") == [(1,), (2,)]


async def test_a_second_death_fails_the_job_without_it(store: Store, raw_db: RawDatabase) -> None:
    job = await died_in_last_attempt(store, raw_db)
    await lease(store, solo=True)
    raw_db.expire_leases()
    assert (await claim(store, solo=True)).lease is None
    item = await job_item(store, job)
    assert (item.status, item.failure_type, item.attempts) == (
        JobStatus.FAILED,
        FailureType.EXHAUSTED,
        2,
    )
    assert item.last_error == DIED_IN_ON_FAILED
    assert raw_db.rows("SELECT number FROM onceward.attempts ORDER BY number") == [(1,), (2,)]


async def test_code_without_it_only_ends_such_a_job(store: Store, raw_db: RawDatabase) -> None:
    job = await died_in_last_attempt(store, raw_db)
    item = await run_next(store, make_runner(store, None), solo=True)
    assert (item.status, item.attempts, item.last_error) == (JobStatus.FAILED, 2, WORKER_DIED)
    assert item.id == str(job)


async def test_its_fault_after_a_death_is_recorded(store: Store, raw_db: RawDatabase) -> None:
    await died_in_last_attempt(store, raw_db)
    item = await run_next(store, make_runner(store, lambda: ValueError("no")), solo=True)
    assert (item.status, item.attempts) == (JobStatus.FAILED, 2)
    assert item.last_error is not None
    assert item.last_error.startswith(f"{WORKER_DIED}; on_failed raised ")


async def test_a_job_that_was_requeued_runs_its_handler(store: Store, raw_db: RawDatabase) -> None:
    """Also if an older version requeued it, which does not know the mark."""
    job = await died_in_last_attempt(store, raw_db)
    await store.cancel(job, ACT)
    await store.requeue(job, ACT)
    raw_db.rows("UPDATE onceward.jobs SET giving_up = TRUE")
    item = await run_next(store, make_runner(store), solo=True)
    assert (item.attempts, item.failure_type) == (3, FailureType.PERMANENT)


async def test_without_it_the_death_of_the_last_worker_fails_the_job(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.register(["ingest", "stripe"], [HandlerEntry("credit", 2, ENTRY.routes)], [])
    job = await died_in_last_attempt(store, raw_db)
    assert (await job_item(store, job)).status == JobStatus.FAILED
    assert [item.status for item in await store.jobs(EVERYTHING)] == [JobStatus.FAILED]
