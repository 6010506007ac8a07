"""An operator may queue a failed job again; actor, reason and time are recorded with it."""

import asyncio

import pytest

from onceward.model.jobs import Fail, FailureType, HandlerEntry, JobStatus, Reschedule, Route
from onceward.ports import Store
from onceward.runtime.failpoints import FailpointReached
from support.database import RawDatabase
from tests.factories import (
    ACT,
    EVERYTHING,
    SOURCES,
    failed_job,
    job_item,
    lease,
    leased_job,
    opened,
)


async def test_a_requeue_is_recorded_in_the_audit_trail(store: Store) -> None:
    job = await failed_job(store)
    requeued = await store.requeue(job.id, ACT)
    assert requeued is not None
    item = await job_item(store, job.id)
    assert (item.status, item.failure_type) == (JobStatus.QUEUED, None)
    assert item.finished_at is None
    assert item.last_error == "no such account"
    assert (requeued.job, requeued.available_at) == (str(job.id), item.available_at)
    assert await store.audit(EVERYTHING) == [requeued.audit]
    assert (requeued.audit.action, requeued.audit.job_id) == ("manual_requeue", str(job.id))
    assert (requeued.audit.actor, requeued.audit.reason) == (ACT.actor, ACT.reason)
    assert requeued.audit.authenticated_as == ACT.authenticated_as


async def test_a_requeue_grants_the_current_max_attempts_of_the_handler(store: Store) -> None:
    job = await failed_job(store)
    await store.requeue(job.id, ACT)
    assert (await job_item(store, job.id)).max_attempts == 1 + 3
    again = await lease(store)
    assert (again.jobs[0].attempts, again.jobs[0].max_attempts) == (1, 4)
    await store.settle_error(again.token, job.id, Reschedule(0.0, "again"), 0.1)
    leased = await lease(store)
    await store.settle_error(leased.token, job.id, Fail(FailureType.EXHAUSTED, "no"), 0.1)
    await store.register(SOURCES, [HandlerEntry("credit", 9, (Route("invoice.paid"),))], [])
    await store.requeue(job.id, ACT)
    assert (await job_item(store, job.id)).max_attempts == 3 + 9


async def test_a_requeued_job_can_be_claimed_and_settled_at_once(store: Store) -> None:
    job = await failed_job(store)
    await store.requeue(job.id, ACT)
    leased = await lease(store)
    assert await store.settle_done(leased.token, job.id)
    item = await job_item(store, job.id)
    assert (item.status, item.attempts, item.last_error) == (JobStatus.DONE, 2, None)


async def test_a_cancelled_job_can_be_requeued(store: Store, raw_db: RawDatabase) -> None:
    _, job = await leased_job(store)
    raw_db.rows("DELETE FROM onceward.leases")
    raw_db.rows("UPDATE onceward.jobs SET status = 'cancelled'")
    assert await store.requeue(job.id, ACT) is not None
    assert await store.job_status(job.id) is JobStatus.QUEUED


@pytest.mark.parametrize("status", ["queued", "in_progress", "done"])
async def test_a_job_in_another_state_cannot_be_requeued(
    store: Store, raw_db: RawDatabase, status: str
) -> None:
    token, job = await leased_job(store)
    if status == "done":
        await store.settle_done(token, job.id)
    elif status != "in_progress":
        await store.end_leases([token])
        raw_db.rows(f"UPDATE onceward.jobs SET status = '{status}'")  # noqa: S608 - a constant of this test
    before = raw_db.rows("SELECT * FROM onceward.jobs")
    assert await store.requeue(job.id, ACT) is None
    assert raw_db.rows("SELECT * FROM onceward.jobs") == before
    assert await store.audit(EVERYTHING) == []
    assert await store.job_status(job.id) == status


async def test_an_unknown_job_cannot_be_requeued(store: Store) -> None:
    assert await store.requeue(404, ACT) is None
    assert await store.audit(EVERYTHING) == []


async def test_one_of_many_concurrent_requeues_lands(store: Store) -> None:
    job = await failed_job(store)
    landed = await asyncio.gather(*(store.requeue(job.id, ACT) for _ in range(8)))
    assert sum(requeued is not None for requeued in landed) == 1
    assert len(await store.audit(EVERYTHING)) == 1


async def test_a_requeue_that_does_not_commit_changes_nothing(
    database_url: str,
) -> None:
    async with opened(database_url) as store:
        job = await failed_job(store)
    # The first transaction of the store is its registration.
    async with opened(database_url, failpoints="operate.written:raise:2") as store:
        with pytest.raises(FailpointReached):
            await store.requeue(job.id, ACT)
        assert await store.job_status(job.id) is JobStatus.FAILED
        assert await store.audit(EVERYTHING) == []
        assert await store.requeue(job.id, ACT) is not None


@pytest.mark.parametrize(
    "change", ["UPDATE onceward.audit SET actor = 'Eve'", "DELETE FROM onceward.audit"]
)
async def test_the_audit_trail_is_append_only(
    store: Store, raw_db: RawDatabase, change: str
) -> None:
    job = await failed_job(store)
    await store.requeue(job.id, ACT)
    with pytest.raises(Exception, match="append only"):
        raw_db.rows(change)
    assert [entry.actor for entry in await store.audit(EVERYTHING)] == [ACT.actor]


async def test_the_audit_trail_cannot_be_truncated(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await store.requeue((await failed_job(store)).id, ACT)
    with pytest.raises(Exception, match="append only"):
        RawDatabase(postgres_url).rows("TRUNCATE onceward.audit")


async def test_a_requeue_copes_with_any_number_of_attempts(
    store: Store, raw_db: RawDatabase
) -> None:
    """An earlier version allowed every integer."""
    job = await failed_job(store)
    raw_db.rows("UPDATE onceward.handlers SET max_attempts = 2147483647")
    assert await store.requeue(job.id, ACT) is not None
    assert (await job_item(store, job.id)).max_attempts == 2147483647
