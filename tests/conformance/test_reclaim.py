"""A worker that falls silent loses its jobs; the one that killed it is found, and only that."""

import asyncio

import pytest

from onceward.errors import LeaseLost
from onceward.model.jobs import FailureType, JobStatus, Lease, Retry
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import (
    ACT,
    EVERYTHING,
    arrival,
    arrivals,
    claim,
    job_item,
    lease,
    leased_job,
    opened,
    record,
    start_task,
    working,
)


async def stranded(store: Store, raw_db: RawDatabase, count: int = 1) -> Lease:
    """A lease that is over and not rescued yet: its worker died."""
    await store.record(arrivals(count))
    held = await lease(store, worker="dead")
    raw_db.expire_leases()
    return held


async def test_an_expired_lease_marks_its_jobs_to_run_alone_and_counts_nothing(
    store: Store, raw_db: RawDatabase
) -> None:
    await stranded(store, raw_db, 3)
    after = await claim(store)
    assert (after.lease, after.solo_waiting) == (None, True)
    assert raw_db.count("onceward.leases") == raw_db.count("onceward.attempts") == 0
    for item in await store.jobs(EVERYTHING):
        assert (item.status, item.attempts, item.last_error) == (JobStatus.QUEUED, 0, None)


async def test_jobs_that_must_run_alone_are_claimed_one_at_a_time(
    store: Store, raw_db: RawDatabase
) -> None:
    held = await stranded(store, raw_db, 3)
    await claim(store)
    claims = [await claim(store, solo=True, limit=10) for _ in range(4)]
    assert [it.lease.jobs[0].id for it in claims if it.lease] == [job.id for job in held.jobs]
    assert [len(it.lease.jobs) for it in claims if it.lease] == [1, 1, 1]
    assert [it.solo_waiting for it in claims] == [True, True, False, False]


async def test_jobs_that_need_not_run_alone_are_not_claimed_as_such(store: Store) -> None:
    await store.record(arrivals(2))
    alone = await claim(store, solo=True)
    assert (alone.lease, alone.solo_waiting) == (None, False)
    assert len((await lease(store)).jobs) == 2


async def test_a_job_that_kills_its_worker_alone_is_blamed_and_parked(
    store: Store, raw_db: RawDatabase
) -> None:
    (job,) = (await stranded(store, raw_db)).jobs
    for deaths in range(1, 4):
        held = await lease(store, solo=True, worker=f"victim-{deaths}")
        assert held.jobs[0].attempts == deaths - 1
        raw_db.expire_leases()
        await claim(store)
        raw_db.make_due()
    item = await job_item(store, job.id)
    assert (item.status, item.attempts) == (JobStatus.FAILED, 3)
    assert item.failure_type is FailureType.EXHAUSTED
    assert item.last_error == "The worker died while it ran this job alone"
    assert item.finished_at is not None
    assert raw_db.rows("SELECT number, worker, error FROM onceward.attempts ORDER BY number") == [
        (number, f"victim-{number}", item.last_error) for number in (1, 2, 3)
    ]
    assert (await claim(store, solo=True)).lease is None


async def test_a_blamed_job_waits_before_it_runs_again(store: Store, raw_db: RawDatabase) -> None:
    await stranded(store, raw_db)
    await lease(store, solo=True)
    raw_db.expire_leases()
    after = await claim(store, solo=True)
    assert (after.lease, after.solo_waiting) == (None, False)
    assert after.next_due_seconds == pytest.approx(1.0, abs=0.5)


async def test_the_neighbours_of_a_killer_are_not_blamed(store: Store, raw_db: RawDatabase) -> None:
    held = await stranded(store, raw_db, 4)
    killer = held.jobs[2].id
    for _ in range(20):
        if (taken := (await claim(store, solo=True)).lease) is None:
            raw_db.make_due()
            continue
        if taken.jobs[0].id == killer:
            raw_db.expire_leases()
        else:
            assert await store.settle_done(taken.token, taken.jobs[0].id)
    items = {int(item.id): item for item in await store.jobs(EVERYTHING)}
    assert (items[killer].status, items[killer].attempts) == (JobStatus.FAILED, 3)
    del items[killer]
    assert {(item.status, item.attempts) for item in items.values()} == {(JobStatus.DONE, 1)}


async def test_a_neighbour_that_was_settled_before_the_death_is_left_alone(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.record(arrivals(4))
    held = await lease(store)
    done, retried, failed, stuck = (job.id for job in held.jobs)
    await store.settle_done(held.token, done)
    await store.settle_error(held.token, retried, Retry(0.0, "again"), 0.1)
    await store.settle_error(held.token, failed, Retry(900.0, "later"), 0.1)
    raw_db.expire_leases()
    after = await claim(store)
    assert after.lease is not None
    assert [job.id for job in after.lease.jobs] == [retried]
    assert [job.id for job in (await lease(store, solo=True)).jobs] == [stuck]
    assert (await job_item(store, done)).attempts == 1


async def test_a_job_that_ran_alone_and_raised_runs_with_others_again(
    store: Store, raw_db: RawDatabase
) -> None:
    await stranded(store, raw_db)
    held = await lease(store, solo=True)
    assert await store.settle_error(held.token, held.jobs[0].id, Retry(0.0, "again"), 0.1)
    assert len((await lease(store)).jobs) == 1


async def test_a_lease_that_lives_is_not_rescued(store: Store, raw_db: RawDatabase) -> None:
    await leased_job(store)
    assert (await claim(store, worker="worker-2")).lease is None
    assert (await claim(store, worker="worker-2", solo=True)).lease is None
    assert raw_db.count("onceward.leases") == 1


async def test_a_late_worker_settles_nothing_after_its_job_went_to_another(
    store: Store, raw_db: RawDatabase
) -> None:
    held = await stranded(store, raw_db)
    job = held.jobs[0].id
    new = await lease(store, solo=True)
    assert not await store.settle_done(held.token, job)
    assert not await store.settle_error(held.token, job, Retry(0.0, "late"), 0.1)
    assert await store.job_status(job) is JobStatus.IN_PROGRESS
    assert await store.settle_done(new.token, job)
    assert not await store.settle_done(held.token, job)
    assert (await job_item(store, job)).attempts == 1


async def test_a_late_worker_settles_nothing_after_the_rescue_alone(
    store: Store, raw_db: RawDatabase
) -> None:
    held = await stranded(store, raw_db)
    await claim(store)
    assert not await store.settle_done(held.token, held.jobs[0].id)
    assert await store.job_status(held.jobs[0].id) is JobStatus.QUEUED


async def test_a_worker_that_was_late_but_not_rescued_may_still_settle(
    store: Store, raw_db: RawDatabase
) -> None:
    held = await stranded(store, raw_db)
    assert await store.settle_done(held.token, held.jobs[0].id)
    assert (await claim(store)).solo_waiting is False


async def test_a_requeued_killer_has_its_attempts_and_still_runs_alone(
    store: Store, raw_db: RawDatabase
) -> None:
    (job,) = (await stranded(store, raw_db)).jobs
    for _ in range(3):
        await lease(store, solo=True)
        raw_db.expire_leases()
        await claim(store)
        raw_db.make_due()
    assert await store.requeue(job.id, ACT) is not None
    assert (await claim(store)).lease is None
    held = await lease(store, solo=True)
    assert (held.jobs[0].attempts, held.jobs[0].max_attempts) == (3, 6)


async def test_a_rescue_leaves_a_settlement_in_flight_alone(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as slow, opened(postgres_url) as other:
        token, job = await leased_job(slow)
        async with slow.begin(str) as session:
            await session.settle(token, job.id)
            raw_db.expire_leases()
            during = await asyncio.wait_for(claim(other), 2.0)
            assert (during.lease, during.solo_waiting) == (None, False)
            assert raw_db.count("onceward.leases") == 1
            await session.commit()
        await claim(other)
        assert await other.job_status(job.id) is JobStatus.DONE
        assert (await claim(other, solo=True)).lease is None


async def test_a_heartbeat_passes_a_settlement_in_flight(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        token, job = await leased_job(store)
        async with store.begin(str) as session:
            await session.settle(token, job.id)
            assert await asyncio.wait_for(store.renew([token], 60.0), 2.0) == {token}
            await session.commit()


async def test_a_settlement_behind_a_rescue_finds_its_lease_gone(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as zombie:
        token, job = await leased_job(zombie)
        raw_db.rows("CREATE TABLE probe (job bigint)")
        async with working(zombie) as work:
            await work.tx.execute("INSERT INTO probe VALUES (1)")
            with raw_db.connection() as rescuer:
                rescuer.execute("DELETE FROM onceward.leases")
                settling = asyncio.create_task(work.unit.settle(token, job.id))
                await asyncio.sleep(0.1)
                assert not settling.done()
            with pytest.raises(LeaseLost):
                await settling
        assert raw_db.count("probe") == 0
        assert await zombie.job_status(job.id) is JobStatus.QUEUED


async def test_a_job_that_is_settled_while_it_is_rescued_stays_settled(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        for is_solo in (False, True):
            await record(store, arrival(f"solo-{is_solo}"))
            held = await lease(store)
            (job,) = held.jobs
            raw_db.rows(f"UPDATE onceward.jobs SET solo = {is_solo} WHERE id = {job.id}")  # noqa: S608 - our own
            raw_db.expire_leases()
            with raw_db.connection() as connection:
                connection.execute(
                    "UPDATE onceward.jobs SET status = 'done', finished_at = now() WHERE id = %s",
                    (job.id,),
                )
                rescuing = await start_task(claim(store))  # it has seen the job queued, and waits
            await rescuing
            item = await job_item(store, job.id)
            assert (item.status, item.attempts) == (JobStatus.DONE, 0)
