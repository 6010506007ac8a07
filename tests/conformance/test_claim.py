"""Claims lease due jobs, oldest first, each to one worker at a time."""

import asyncio
from collections import Counter
from typing import cast

import pytest

from onceward.errors import PermanentError
from onceward.model.jobs import (
    Claim,
    ClaimRequest,
    FailureType,
    HandlerEntry,
    JobStatus,
    Renewal,
    Reschedule,
)
from onceward.ports import Queue, Store
from onceward.store.locks import Lock
from onceward.store.postgres.connections import lock_statement
from onceward.work.claiming.leases import Leases
from support.database import RawDatabase
from tests.factories import (
    ACT,
    BROKEN,
    NOTIFY,
    SOURCES,
    arrival,
    arrivals,
    claim,
    failed_job,
    job_item,
    lease,
    leased_job,
    opened,
    record,
    start_task,
)


async def test_a_claim_leases_the_oldest_jobs_up_to_its_limit(store: Store) -> None:
    await store.record(arrivals(3))
    await store.record(arrivals(4, prefix="later"))
    leases = [await lease(store, limit=limit) for limit in (2, 3, 9)]
    assert [[job.event_id for job in leased.jobs] for leased in leases] == [
        ["evt_0", "evt_1"],
        ["evt_2", "later_0", "later_1"],
        ["later_2", "later_3"],
    ]
    assert (await claim(store)).lease is None


async def test_jobs_are_ordered_by_due_time_and_not_by_id(store: Store) -> None:
    token, job = await leased_job(store, "retried")
    await record(store, arrival("fresh"))
    await store.settle_error(token, job.id, Reschedule(0.0, "try again"), 0.1)
    assert [job.event_id for job in (await lease(store)).jobs] == ["fresh", "retried"]


async def test_jobs_of_several_handlers_share_one_order(store: Store) -> None:
    for number in range(6):
        kind = "order.new" if number % 2 else "invoice.paid"
        await record(store, arrival(f"evt_{number}", type=kind))
    for expected in (["evt_0", "evt_1", "evt_2"], ["evt_3", "evt_4", "evt_5"]):
        leased = await lease(store, handlers=["credit", "notify"], limit=3)
        assert [job.event_id for job in leased.jobs] == expected


async def test_a_worker_claims_only_jobs_of_its_own_handlers(store: Store) -> None:
    await store.record(arrivals(100, type="order.new", prefix="other"))
    await store.record(arrivals(3))
    leased = await lease(store, handlers=["credit"])
    assert {job.handler for job in leased.jobs} == {"credit"}
    assert len(leased.jobs) == 3
    empty = await claim(store, handlers=["credit"])
    assert (empty.lease, empty.solo_waiting, empty.next_due_seconds) == (None, False, None)


async def test_a_job_is_not_claimed_before_it_is_due(store: Store, raw_db: RawDatabase) -> None:
    token, job = await leased_job(store)
    await store.settle_error(token, job.id, Reschedule(30.0, "later"), 0.1)
    waiting = await claim(store)
    assert waiting.lease is None
    assert waiting.next_due_seconds == pytest.approx(30.0, abs=2.0)
    raw_db.make_due()
    assert [job.id for job in (await lease(store)).jobs] == [job.id]


async def test_next_due_is_the_soonest_job_without_a_lease(store: Store) -> None:
    await store.record(arrivals(3))
    leased = await lease(store)
    for job, delay_seconds in zip(leased.jobs, (50.0, 20.0, 80.0), strict=True):
        await store.settle_error(leased.token, job.id, Reschedule(delay_seconds, "later"), 0.1)
    assert (await claim(store)).next_due_seconds == pytest.approx(20.0, abs=2.0)
    assert (await claim(store, handlers=["notify"])).next_due_seconds is None


async def test_a_leased_job_is_in_progress_and_not_claimed_again(store: Store) -> None:
    _, job = await leased_job(store)
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS
    again = await claim(store)
    assert (again.lease, again.next_due_seconds) == (None, None)


async def test_a_claim_writes_no_job(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival())
    before = raw_db.rows("SELECT * FROM onceward.jobs")
    await lease(store)
    assert raw_db.rows("SELECT * FROM onceward.jobs") == before


async def test_concurrent_claims_lease_each_job_once(store: Store) -> None:
    await store.record(arrivals(120))
    claims = await asyncio.gather(*(claim(store, limit=7) for _ in range(30)))
    jobs = Counter(job.id for claimed in claims if claimed.lease for job in claimed.lease.jobs)
    assert len(jobs) == 120
    assert set(jobs.values()) == {1}


async def test_workers_in_several_processes_lease_each_job_once(postgres_url: str) -> None:
    claimed: Counter[int] = Counter()

    async def work(store: Store) -> None:
        while leased := (await claim(store, limit=5)).lease:
            claimed.update(job.id for job in leased.jobs)
            await asyncio.gather(
                *(store.settle_done(leased.token, job.id) for job in leased.jobs[::2])
            )
            await store.end_leases([])

    async with (
        opened(postgres_url) as one,
        opened(postgres_url) as two,
        opened(postgres_url) as three,
    ):
        await one.record(arrivals(150))
        await asyncio.gather(*(work(store) for store in (one, two, three) for _ in range(3)))
    assert len(claimed) == 150
    assert set(claimed.values()) == {1}


async def test_a_renewed_lease_is_not_reclaimed(store: Store, raw_db: RawDatabase) -> None:
    token, _ = await leased_job(store)
    raw_db.expire_leases()
    assert (await store.renew([token], 60.0)).held == {token}
    assert (await claim(store)).lease is None
    assert raw_db.count("onceward.leases") == 1


async def test_renew_returns_the_leases_still_held(store: Store, raw_db: RawDatabase) -> None:
    lost, _ = await leased_job(store, "lost")
    raw_db.expire_leases()
    await claim(store)
    alive, _ = await leased_job(store, "alive")
    assert (await store.renew([lost, alive, "unknown"], 60.0)).held == {alive}
    assert (await store.renew([], 60.0)).held == frozenset()


async def test_released_jobs_can_be_claimed_at_once_and_count_no_attempt(store: Store) -> None:
    await store.record(arrivals(3))
    leased = await lease(store)
    first, second, third = (job.id for job in leased.jobs)
    await store.release(leased.token, [first, third])
    again = await lease(store, worker="worker-2")
    assert [job.id for job in again.jobs] == [first, third]
    assert {job.attempts for job in again.jobs} == {0}
    assert not await store.settle_done(leased.token, first)
    assert await store.settle_done(leased.token, second)
    assert await store.settle_done(again.token, first)


async def test_a_release_under_a_lost_lease_does_not_affect_the_new_one(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    raw_db.expire_leases()
    new = await lease(store, solo=True)
    await store.release(token, [job.id])
    assert (await claim(store, solo=True)).lease is None
    assert await store.settle_done(new.token, job.id)


async def test_a_release_does_not_affect_a_job_that_left_the_lease(store: Store) -> None:
    await store.record(arrivals(2))
    leased = await lease(store)
    kept, left = (job.id for job in leased.jobs)
    await store.cancel(left, ACT)
    await store.requeue(left, ACT)
    new = await lease(store, worker="worker-2")
    await store.settle_error(new.token, left, Reschedule(1000.0, "try again"), 0.1)
    await store.release(leased.token, [kept, left])
    assert [job.id for job in (await lease(store)).jobs] == [kept]


async def test_an_ended_lease_is_deleted(store: Store, raw_db: RawDatabase) -> None:
    token, job = await leased_job(store)
    await store.settle_done(token, job.id)
    await store.end_leases([token])
    assert raw_db.count("onceward.leases") == 0


async def test_a_claim_deletes_the_ended_leases(store: Store, raw_db: RawDatabase) -> None:
    token, job = await leased_job(store)
    await store.settle_done(token, job.id)
    await claim(store, ended=[token])
    assert raw_db.count("onceward.leases") == 0
    await record(store, arrival("next"))
    assert len((await lease(store)).jobs) == 1


async def test_a_requeued_job_can_be_claimed_while_its_old_lease_is_alive(
    store: Store,
) -> None:
    await store.record(arrivals(2))
    leased = await lease(store)
    first, second = leased.jobs
    await store.settle_error(leased.token, first.id, BROKEN, 0.1)
    assert await store.requeue(first.id, ACT) is not None
    again = await lease(store)
    assert [job.id for job in again.jobs] == [first.id]
    assert not await store.settle_done(leased.token, first.id)
    assert await store.settle_done(again.token, first.id)
    assert await store.settle_done(leased.token, second.id)


async def test_a_change_of_max_attempts_applies_to_later_jobs(store: Store) -> None:
    await record(store, arrival("a", type="order.new"))
    await store.register(SOURCES, [HandlerEntry("notify", 9, NOTIFY.routes)], [])
    await record(store, arrival("b", type="order.new"))
    leased = await lease(store, handlers=["notify"])
    assert [job.max_attempts for job in leased.jobs] == [5, 9]


async def test_a_worker_ends_a_lease_when_all_its_jobs_are_settled(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.record(arrivals(2))
    leases = Leases(store, worker="worker-1", slots=4, lease_seconds=60.0)
    leased = (await leases.claim({"credit": 10}, 10, solo=False)).lease
    assert leased is not None
    for job in leased.jobs:
        assert leases.holds(leased)
        assert not (await leases.renew()).tokens
        await store.settle_done(leased.token, job.id)
        leases.finish(leased, job)
    assert not leases.holds(leased)
    await leases.end()
    assert raw_db.count("onceward.leases") == 0


async def test_a_worker_learns_once_that_a_lease_is_lost(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival())
    leases = Leases(store, worker="worker-1", slots=4, lease_seconds=60.0)
    leased = (await leases.claim({"credit": 10}, 10, solo=False)).lease
    assert leased is not None
    raw_db.expire_leases()
    await claim(store, worker="worker-2")
    assert (await leases.renew()).tokens == {leased.token}
    assert not (await leases.renew()).tokens


async def test_a_failed_job_is_never_claimed(store: Store, raw_db: RawDatabase) -> None:
    job = await failed_job(store)
    raw_db.make_due()
    raw_db.expire_leases()
    assert (await claim(store)).lease is None
    assert (await claim(store, solo=True)).lease is None
    item = await job_item(store, job.id)
    assert (item.status, item.failure_type) == (JobStatus.FAILED, FailureType.PERMANENT)


async def test_a_missing_payload_is_a_permanent_error(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival("evt_1"))
    raw_db.rows("DELETE FROM onceward.payloads")
    (job,) = (await lease(store)).jobs
    assert job.body is None
    with pytest.raises(PermanentError, match="no longer stored"):
        await store.load_body(job)


async def test_an_abandoned_lease_expires(store: Store, raw_db: RawDatabase) -> None:
    """One of its jobs may still run, in a thread that cannot be stopped."""
    await record(store, arrival())
    leases = Leases(store, worker="worker-1", slots=4, lease_seconds=60.0)
    leased = (await leases.claim({"credit": 10}, 10, solo=False)).lease
    assert leased is not None
    leases.abandon(leased)
    raw_db.expire_leases()
    assert not (await leases.renew()).tokens
    assert (await claim(store, worker="worker-2")).solo_waiting


async def test_a_lease_that_ends_during_its_renewal_was_not_lost(store: Store) -> None:
    class SlowQueue:
        claim = staticmethod(store.claim)

        async def renew(self, *_: object, **__: object) -> Renewal:
            assert leased is not None
            leases.finish(leased, leased.jobs[0])
            return Renewal(frozenset())

    await record(store, arrival())
    leases = Leases(cast("Queue", SlowQueue()), worker="w", slots=4, lease_seconds=60.0)
    leased = (await leases.claim({"credit": 10}, 10, solo=False)).lease
    assert not (await leases.renew()).tokens


async def test_the_jobs_of_a_lease_that_ended_are_not_blamed_if_it_has_expired(
    store: Store, raw_db: RawDatabase
) -> None:
    """A worker that the database did not answer ends its lease with its next claim."""
    token, job = await leased_job(store)
    raw_db.expire_leases()
    again = await lease(store, ended=[token])
    assert again.jobs == (job,)


async def test_a_lease_whose_response_was_lost_is_ended_by_the_next_claim(
    store: Store, raw_db: RawDatabase
) -> None:
    class Interrupted(ConnectionError):
        pass

    class UnreliableQueue:
        def __init__(self) -> None:
            self.losses = ["request", "response"]

        async def claim(self, request: ClaimRequest) -> Claim:
            lost = self.losses.pop(0) if self.losses else ""
            if lost == "request":
                raise Interrupted
            claimed = await store.claim(request)
            if lost == "response":
                raise Interrupted
            return claimed

    token, job = await leased_job(store, "settled")
    assert await store.settle_done(token, job.id)
    await record(store, arrival())
    queue = UnreliableQueue()
    leases = Leases(cast("Queue", queue), worker="w", slots=4, lease_seconds=60.0)
    leases._ended.append(token)  # a claim that is not sent must not forget it
    for _ in range(2):
        with pytest.raises(Interrupted):
            await leases.claim({"credit": 10}, 10, solo=False)
    leased = (await leases.claim({"credit": 10}, 10, solo=False)).lease
    assert leased is not None
    assert [job.event_id for job in leased.jobs] == ["evt_1"]
    assert raw_db.count("onceward.leases") == 1


async def test_a_claim_that_does_not_look_for_lost_jobs_ends_leases(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    assert await store.settle_done(token, job.id)
    await claim(store, ended=[token], looks_for_lost=False)
    assert raw_db.count("onceward.leases") == 0


@pytest.mark.parametrize("looks_for_lost", [False, True])
async def test_claims_exclude_each_other(postgres_url: str, *, looks_for_lost: bool) -> None:
    async with opened(postgres_url) as store:
        with RawDatabase(postgres_url).connection() as other:
            other.execute(lock_statement(Lock.CLAIMS))
            claiming = await start_task(claim(store, looks_for_lost=looks_for_lost))
            await asyncio.sleep(0.1)
            assert not claiming.done()
        await claiming
