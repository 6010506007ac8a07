"""A dead worker loses its jobs, and only the job that killed it is blamed."""

import asyncio
from collections import Counter

import pytest

from onceward.errors import LeaseLost
from onceward.model.jobs import Fail, FailureType, JobStatus, Lease, Reschedule
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
    settle_in_flight,
    start_task,
    working,
)


async def expired_lease(
    store: Store, raw_db: RawDatabase, count: int = 1, *, prefix: str = "evt"
) -> Lease:
    """Return the lease of a dead worker, expired and not yet reclaimed."""
    await store.record(arrivals(count, prefix=prefix))
    leased = await lease(store, worker="dead")
    raw_db.expire_leases()
    return leased


async def test_jobs_of_an_expired_lease_must_run_alone_and_lose_no_attempt(
    store: Store, raw_db: RawDatabase
) -> None:
    await expired_lease(store, raw_db, 3)
    after = await claim(store)
    assert (after.lease, after.solo_waiting) == (None, True)
    assert raw_db.count("onceward.leases") == raw_db.count("onceward.attempts") == 0
    for item in await store.jobs(EVERYTHING):
        assert (item.status, item.attempts, item.last_error) == (JobStatus.QUEUED, 0, None)


async def test_a_claim_that_does_not_look_leaves_lost_leases_to_the_next_one(
    store: Store, raw_db: RawDatabase
) -> None:
    await expired_lease(store, raw_db, 3)
    after = await claim(store, looks_for_lost=False)
    assert (after.lease, after.solo_waiting) == (None, False)
    assert raw_db.count("onceward.leases") == 1
    assert (await claim(store)).solo_waiting


async def test_a_claim_that_only_wakes_keys_reclaims_nothing(
    store: Store, raw_db: RawDatabase
) -> None:
    (job,) = (await expired_lease(store, raw_db)).jobs
    await claim(store, settled=[job.id + 1], looks_for_lost=False)
    assert raw_db.count("onceward.leases") == 1


async def claimed_alone(store: Store) -> list[int]:
    """Claim the jobs that must run alone, one after the other."""
    jobs = []
    while (alone := (await claim(store, solo=True)).lease) is not None:
        jobs += [job.id for job in alone.jobs]
    return jobs


async def test_only_the_jobs_that_may_have_started_must_run_alone(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.record(arrivals(5))
    first = await lease(store, worker="dead", slots=2, limit=3)
    second = await lease(store, worker="dead", slots=2, limit=2)
    done, *unsettled = (job.id for job in (*first.jobs, *second.jobs))
    await store.settle_done(first.token, done)
    raw_db.expire_leases()
    assert [job.id for job in (await lease(store)).jobs] == unsettled[2:]
    assert await claimed_alone(store) == unsettled[:2]


async def test_each_worker_and_each_handler_may_have_started_as_many_jobs_as_it_has_slots(
    store: Store, raw_db: RawDatabase
) -> None:
    types = ["invoice.paid", "order.new"] * 4
    await record(store, *(arrival(f"evt_{n}", type=each) for n, each in enumerate(types)))
    for worker in ("dead", "dead too"):
        await lease(store, worker=worker, slots=1, handlers={"credit": 2, "notify": 2})
    raw_db.expire_leases()
    others = await lease(store, handlers=["credit", "notify"])
    assert Counter(job.handler for job in others.jobs) == {"credit": 2, "notify": 2}
    solo = "SELECT handler, count(*) FROM onceward.jobs WHERE solo GROUP BY handler"
    assert [count for _, count in raw_db.rows(solo)] == [2, 2]


async def test_a_job_with_attempts_left_is_retried_although_it_is_marked_to_give_up(
    store: Store, raw_db: RawDatabase
) -> None:
    """An older version that requeues a job does not know the mark."""
    await expired_lease(store, raw_db)
    raw_db.rows("UPDATE onceward.jobs SET giving_up = TRUE")
    await claim(store)
    (job,) = (await lease(store, solo=True)).jobs
    raw_db.expire_leases()
    await claim(store)
    item = await job_item(store, job.id)
    assert (item.status, item.attempts, item.failure_type) == (JobStatus.QUEUED, 1, None)


async def test_a_job_that_failed_with_on_failed_has_no_mark_of_a_death(
    store: Store, raw_db: RawDatabase
) -> None:
    await expired_lease(store, raw_db)
    raw_db.rows("UPDATE onceward.jobs SET giving_up = TRUE")
    await claim(store)
    leased = await lease(store, solo=True)
    failure = Fail(FailureType.EXHAUSTED, "no", counts_attempt=False)
    async with store.begin(str) as transaction:
        assert await transaction.settle_failed(leased.token, leased.jobs[0].id, failure, 0.1)
        await transaction.commit()
    marks = "SELECT status, attempts FROM onceward.jobs WHERE NOT solo AND NOT giving_up"
    assert raw_db.rows(marks) == [("failed", 0)]


async def test_jobs_that_must_run_alone_are_claimed_one_at_a_time(
    store: Store, raw_db: RawDatabase
) -> None:
    leased = await expired_lease(store, raw_db, 3)
    await claim(store)
    claims = [await claim(store, solo=True, limit=10) for _ in range(4)]
    jobs = [claimed.lease.jobs for claimed in claims if claimed.lease]
    assert [[job.id for job in alone] for alone in jobs] == [[job.id] for job in leased.jobs]
    assert [claimed.solo_waiting for claimed in claims] == [True, True, False, False]


async def test_a_solo_job_behind_older_jobs_is_waiting(store: Store, raw_db: RawDatabase) -> None:
    await store.record(arrivals(3))
    assert not (await claim(store, limit=1)).solo_waiting
    raw_db.rows(
        "UPDATE onceward.jobs SET solo = TRUE WHERE id = (SELECT max(id) FROM onceward.jobs)"
    )
    assert (await claim(store, limit=0)).solo_waiting


async def test_a_solo_job_that_is_parked_is_not_waiting(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival())
    raw_db.rows("UPDATE onceward.jobs SET solo = TRUE, parked = TRUE")
    assert not (await claim(store)).solo_waiting
    raw_db.rows("UPDATE onceward.jobs SET parked = FALSE")
    assert (await claim(store)).solo_waiting


async def test_a_solo_claim_leases_no_other_jobs(store: Store) -> None:
    await store.record(arrivals(2))
    alone = await claim(store, solo=True)
    assert (alone.lease, alone.solo_waiting) == (None, False)
    assert len((await lease(store)).jobs) == 2


async def test_a_job_that_kills_its_worker_every_time_fails(
    store: Store, raw_db: RawDatabase
) -> None:
    (job,) = (await expired_lease(store, raw_db)).jobs
    for deaths in range(1, 4):
        leased = await lease(store, solo=True, worker=f"victim-{deaths}")
        assert leased.jobs[0].attempts == deaths - 1
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


async def test_each_death_and_the_last_one_are_logged(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """No other line says so: the process that could have written it is gone."""
    await expired_lease(store, raw_db)
    await claim(store)
    assert not caplog.records
    raw_db.rows("UPDATE onceward.jobs SET max_attempts = 2")
    for level, text in (
        ("WARNING", "failed, attempt 1 of 2: The worker died"),
        ("ERROR", "failed for good after 2 attempts (exhausted): The worker died"),
    ):
        raw_db.rows("UPDATE onceward.jobs SET available_at = created_at")
        await lease(store, solo=True)
        raw_db.expire_leases()
        caplog.clear()
        await claim(store)
        (record,) = caplog.records
        assert record.levelname == level
        assert record.getMessage().startswith(f"job 1 of handler 'credit' {text}")
        assert vars(record)["event_id"] == "evt_0"


async def test_the_delay_of_a_blamed_job_doubles_up_to_its_maximum(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    delays = {0: 1.0, 1: 2.0, 10: 1024.0, 12: 3600.0, 10**6: 3600.0}
    for attempts, seconds in delays.items():
        with subtests.test(f"{attempts} attempts"):
            raw_db.rows("UPDATE onceward.jobs SET status = 'cancelled', finished_at = available_at")
            await expired_lease(store, raw_db, prefix=f"{attempts}")
            raw_db.rows(
                f"UPDATE onceward.jobs SET attempts = {attempts}, max_attempts = {attempts + 2}"  # noqa: S608 - no outside input
            )
            await lease(store, solo=True)
            raw_db.expire_leases()
            after = await claim(store, solo=True)
            assert (after.lease, after.solo_waiting) == (None, False)
            assert after.next_due_seconds == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize(("attempts", "seconds"), [(0, 5.0), (1, 7.0)])
async def test_the_delay_of_a_blamed_job_follows_the_settings(
    database_url: str, raw_db: RawDatabase, attempts: int, seconds: float
) -> None:
    async with opened(database_url, retry_base_seconds=5.0, retry_max_seconds=7.0) as store:
        await expired_lease(store, raw_db)
        raw_db.rows(f"UPDATE onceward.jobs SET attempts = {attempts}")  # noqa: S608 - no outside input
        await lease(store, solo=True)
        raw_db.expire_leases()
        after = await claim(store, solo=True)
        assert after.next_due_seconds == pytest.approx(seconds, abs=0.5)


async def test_the_neighbours_of_a_poison_job_are_not_blamed(
    store: Store, raw_db: RawDatabase
) -> None:
    leased = await expired_lease(store, raw_db, 4)
    poison = leased.jobs[2].id
    for _ in range(20):
        if (alone := (await claim(store, solo=True)).lease) is None:
            raw_db.make_due()
            continue
        if alone.jobs[0].id == poison:
            raw_db.expire_leases()
        else:
            assert await store.settle_done(alone.token, alone.jobs[0].id)
    items = {int(item.id): item for item in await store.jobs(EVERYTHING)}
    assert (items[poison].status, items[poison].attempts) == (JobStatus.FAILED, 3)
    del items[poison]
    assert {(item.status, item.attempts) for item in items.values()} == {(JobStatus.DONE, 1)}


async def test_jobs_settled_before_the_death_are_not_reclaimed(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.record(arrivals(4))
    leased = await lease(store)
    done, retried, failed, stuck = (job.id for job in leased.jobs)
    await store.settle_done(leased.token, done)
    await store.settle_error(leased.token, retried, Reschedule(0.0, "again"), 0.1)
    await store.settle_error(leased.token, failed, Reschedule(900.0, "later"), 0.1)
    raw_db.expire_leases()
    after = await claim(store)
    assert after.lease is not None
    assert [job.id for job in after.lease.jobs] == [retried]
    assert [job.id for job in (await lease(store, solo=True)).jobs] == [stuck]
    assert (await job_item(store, done)).attempts == 1


async def test_a_solo_job_that_raises_may_run_with_others_again(
    store: Store, raw_db: RawDatabase
) -> None:
    await expired_lease(store, raw_db)
    leased = await lease(store, solo=True)
    assert await store.settle_error(leased.token, leased.jobs[0].id, Reschedule(0.0, "again"), 0.1)
    assert len((await lease(store)).jobs) == 1


async def test_a_live_lease_is_not_reclaimed(store: Store, raw_db: RawDatabase) -> None:
    await leased_job(store)
    assert (await claim(store, worker="worker-2")).lease is None
    assert (await claim(store, worker="worker-2", solo=True)).lease is None
    assert raw_db.count("onceward.leases") == 1


async def test_a_late_worker_cannot_settle_a_job_that_another_has_claimed(
    store: Store, raw_db: RawDatabase
) -> None:
    leased = await expired_lease(store, raw_db)
    job = leased.jobs[0].id
    new = await lease(store, solo=True)
    assert not await store.settle_done(leased.token, job)
    assert not await store.settle_error(leased.token, job, Reschedule(0.0, "late"), 0.1)
    assert await store.job_status(job) is JobStatus.IN_PROGRESS
    assert await store.settle_done(new.token, job)
    assert not await store.settle_done(leased.token, job)
    assert (await job_item(store, job)).attempts == 1


async def test_a_late_worker_cannot_settle_a_reclaimed_job(
    store: Store, raw_db: RawDatabase
) -> None:
    leased = await expired_lease(store, raw_db)
    await claim(store)
    assert not await store.settle_done(leased.token, leased.jobs[0].id)
    assert await store.job_status(leased.jobs[0].id) is JobStatus.QUEUED


async def test_a_late_worker_may_settle_until_its_lease_is_reclaimed(
    store: Store, raw_db: RawDatabase
) -> None:
    leased = await expired_lease(store, raw_db)
    assert await store.settle_done(leased.token, leased.jobs[0].id)
    assert (await claim(store)).solo_waiting is False


async def test_a_requeued_poison_job_gets_more_attempts_and_still_runs_alone(
    store: Store, raw_db: RawDatabase
) -> None:
    (job,) = (await expired_lease(store, raw_db)).jobs
    for _ in range(3):
        await lease(store, solo=True)
        raw_db.expire_leases()
        await claim(store)
        raw_db.make_due()
    assert await store.requeue(job.id, ACT) is not None
    assert (await claim(store)).lease is None
    leased = await lease(store, solo=True)
    assert (leased.jobs[0].attempts, leased.jobs[0].max_attempts) == (3, 6)


async def test_a_reclaim_skips_a_lease_with_a_settlement_in_flight(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as slow, opened(postgres_url) as other:
        token, job = await leased_job(slow)
        async with slow.begin(str) as transaction:
            await settle_in_flight(transaction, token, job.id)
            raw_db.expire_leases()
            during = await asyncio.wait_for(claim(other), 2.0)
            assert (during.lease, during.solo_waiting) == (None, False)
            assert raw_db.count("onceward.leases") == 1
            await transaction.commit()
        await claim(other)
        assert await other.job_status(job.id) is JobStatus.DONE
        assert (await claim(other, solo=True)).lease is None


async def test_a_renewal_does_not_wait_for_a_settlement_in_flight(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        token, job = await leased_job(store)
        async with store.begin(str) as transaction:
            await settle_in_flight(transaction, token, job.id)
            assert (await asyncio.wait_for(store.renew([token], 60.0), 2.0)).held == {token}
            await transaction.commit()


async def test_a_settlement_that_waited_for_a_reclaim_is_rolled_back(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as zombie:
        token, job = await leased_job(zombie)
        raw_db.rows("CREATE TABLE probe (job bigint)")
        async with working(zombie) as work:
            await work.tx.execute("INSERT INTO probe VALUES (1)")
            with raw_db.connection() as reclaimer:
                reclaimer.execute("DELETE FROM onceward.leases")
                settling = asyncio.create_task(work.unit.settle(token, job.id))
                await asyncio.sleep(0.1)
                assert not settling.done()
            with pytest.raises(LeaseLost):
                await settling
        assert raw_db.count("probe") == 0
        assert await zombie.job_status(job.id) is JobStatus.QUEUED


async def test_a_job_settled_during_a_reclaim_stays_settled(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        for is_solo in (False, True):
            await record(store, arrival(f"solo-{is_solo}"))
            leased = await lease(store)
            (job,) = leased.jobs
            raw_db.rows(f"UPDATE onceward.jobs SET solo = {is_solo} WHERE id = {job.id}")  # noqa: S608 - no outside data
            raw_db.expire_leases()
            with raw_db.connection() as connection:
                connection.execute(
                    "UPDATE onceward.jobs SET status = 'done', finished_at = now() WHERE id = %s",
                    (job.id,),
                )
                # The claim has seen the job queued and waits for its row.
                claiming = await start_task(claim(store))
            await claiming
            item = await job_item(store, job.id)
            assert (item.status, item.attempts) == (JobStatus.DONE, 0)


async def test_a_job_that_runs_alone_is_found_after_claims_of_others(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, *arrivals(2))
    past = "1" if raw_db.is_sqlite else "now() - interval '1 hour'"
    raw_db.rows(f"UPDATE onceward.jobs SET solo = (id = 1), available_at = {past}")  # noqa: S608 - no outside data
    assert [job.id for job in (await lease(store)).jobs] == [2]
    await claim(store)
    assert [job.id for job in (await lease(store, solo=True)).jobs] == [1]


async def test_jobs_are_found_after_a_claim_of_jobs_that_run_alone(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, *arrivals(2))
    past = "1" if raw_db.is_sqlite else "now() - interval '1 hour'"
    raw_db.rows(f"UPDATE onceward.jobs SET available_at = {past}")  # noqa: S608 - no outside data
    assert (await claim(store, solo=True)).lease is None
    assert len((await lease(store)).jobs) == 2
