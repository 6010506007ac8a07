"""A settlement needs the lease, lands once, and commits with the handler's writes or not at all."""

import asyncio
from datetime import timedelta
from itertools import product

import pytest

from onceward.errors import LeaseLost
from onceward.model.events import ProcessingState
from onceward.model.jobs import Fail, FailureType, JobStatus, Postpone, Reschedule
from onceward.ports import Store
from onceward.runtime.failpoints import FailpointReached
from support.database import RawDatabase
from tests.factories import (
    ACT,
    BROKEN,
    EVERYTHING,
    arrival,
    arrivals,
    claim,
    job_item,
    lease,
    leased_job,
    opened,
    record,
    working,
)


@pytest.fixture
def accounts(store: Store, raw_db: RawDatabase) -> RawDatabase:
    """Create a table of the app."""
    raw_db.rows("CREATE TABLE accounts (customer text, balance integer)")
    return raw_db


INSERT = "INSERT INTO accounts (customer, balance) VALUES (:customer, :balance)"
ANN = {"customer": "Ann", "balance": 5}


async def test_done_commits_with_the_writes_of_the_handler(
    store: Store, accounts: RawDatabase
) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT, ANN)
        assert await work.unit.settle(token, job.id)
    assert accounts.rows("SELECT customer, balance FROM accounts") == [("Ann", 5)]
    item = await job_item(store, job.id)
    assert (item.status, item.attempts, item.last_error) == (JobStatus.DONE, 1, None)
    assert item.finished_at is not None
    (event,) = await store.events(EVERYTHING)
    assert event.processing_state is ProcessingState.SUCCEEDED
    assert event.processed_at == item.finished_at


async def test_the_writes_of_a_handler_that_raises_are_rolled_back(
    store: Store, accounts: RawDatabase
) -> None:
    _, job = await leased_job(store)

    async def handle() -> None:
        async with working(store) as work:
            await work.tx.execute(INSERT, ANN)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await handle()
    assert accounts.count("accounts") == 0
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_a_crash_between_done_and_commit_leaves_neither(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with opened(database_url, failpoints="settle.written:raise:1") as store:
        raw_db.rows("CREATE TABLE accounts (customer text, balance integer)")
        token, job = await leased_job(store)
        async with working(store) as work:
            await work.tx.execute(INSERT, ANN)
            with pytest.raises(FailpointReached):
                await work.unit.settle(token, job.id)
        assert raw_db.count("accounts") == 0
        assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_a_handler_without_statements_begins_no_transaction(store: Store) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        assert not await work.unit.settle(token, job.id)
    assert await store.settle_done(token, job.id)
    assert await store.job_status(job.id) is JobStatus.DONE


async def test_a_worker_whose_job_another_has_claimed_commits_nothing(
    store: Store, accounts: RawDatabase
) -> None:
    token, job = await leased_job(store)
    accounts.expire_leases()
    new = await lease(store, solo=True)
    async with working(store) as zombie:
        await zombie.tx.execute(INSERT, ANN)
        with pytest.raises(LeaseLost):
            await zombie.unit.settle(token, job.id)
    assert accounts.count("accounts") == 0
    async with working(store) as work:
        await work.tx.execute(INSERT, {"customer": "Bob", "balance": 7})
        assert await work.unit.settle(new.token, job.id)
    assert accounts.rows("SELECT customer FROM accounts") == [("Bob",)]


async def test_a_worker_whose_job_another_has_settled_commits_nothing(
    store: Store, accounts: RawDatabase
) -> None:
    token, job = await leased_job(store)
    accounts.expire_leases()
    new = await lease(store, solo=True)
    assert await store.settle_done(new.token, job.id)
    async with working(store) as zombie:
        await zombie.tx.execute(INSERT, ANN)
        with pytest.raises(LeaseLost):
            await zombie.unit.settle(token, job.id)
    assert accounts.count("accounts") == 0
    assert (await job_item(store, job.id)).attempts == 1


async def test_a_token_settles_only_the_jobs_of_its_own_lease(
    store: Store, accounts: RawDatabase
) -> None:
    await store.record(arrivals(2))
    first, second = await lease(store, limit=1), await lease(store, limit=1)
    job = second.jobs[0].id
    async with working(store) as work:
        await work.tx.execute(INSERT, ANN)
        with pytest.raises(LeaseLost):
            await work.unit.settle(first.token, job)
    assert not await store.settle_done(first.token, job)
    for settlement in (Reschedule(0.0, "no"), Postpone(0.0, "no")):
        assert not await store.settle_error(first.token, job, settlement, 0.1)
    async with store.begin(str) as transaction:
        failure = Fail(FailureType.PERMANENT, "no")
        assert not await transaction.settle_failed(first.token, job, failure, 0.1)
    assert (await job_item(store, job)).last_error is None
    assert accounts.count("accounts") == accounts.count("onceward.attempts") == 0
    assert await store.settle_done(second.token, job)


Settlement = str | Reschedule | Fail
SETTLEMENTS: tuple[Settlement, ...] = (
    "done",
    Reschedule(0.0, "again"),
    Fail(FailureType.PERMANENT, "no"),
)


async def test_a_settlement_lands_once(store: Store, subtests: pytest.Subtests) -> None:
    async def settle(settlement: Settlement, token: str, job: int) -> bool:
        if isinstance(settlement, str):
            return await store.settle_done(token, job)
        return await store.settle_error(token, job, settlement, 0.1)

    pairs = list(product(SETTLEMENTS, repeat=2))
    await store.record(arrivals(len(pairs)))
    leases = [await lease(store, limit=1) for _ in pairs]
    for (first, second), leased in zip(pairs, leases, strict=True):
        with subtests.test(f"{first}, then {second}"):
            (job,) = leased.jobs
            assert await settle(first, leased.token, job.id)
            before = await job_item(store, job.id)
            assert not await settle(second, leased.token, job.id)
            assert await job_item(store, job.id) == before


async def test_a_settlement_of_several_jobs_lands_only_for_all_of_them(store: Store) -> None:
    await store.record(arrivals(2))
    leased = await lease(store)
    first, second = (job.id for job in leased.jobs)
    assert await store.settle_done(leased.token, first)
    async with store.begin(str) as transaction:
        with pytest.raises(LeaseLost):
            await transaction.commit_done({leased.token: [first, second]})
    assert await store.job_status(second) is JobStatus.IN_PROGRESS
    assert not await store.settle_done(leased.token, first, second)


async def test_one_of_many_concurrent_settlements_lands(store: Store) -> None:
    token, job = await leased_job(store)
    landed = await asyncio.gather(*(store.settle_done(token, job.id) for _ in range(8)))
    assert sorted(landed) == [False] * 7 + [True]
    assert (await job_item(store, job.id)).attempts == 1


async def test_a_retry_is_due_later_and_stores_its_error(store: Store, raw_db: RawDatabase) -> None:
    token, job = await leased_job(store)
    before = await job_item(store, job.id)
    assert await store.settle_error(token, job.id, Reschedule(90.0, "no response"), 2.0)
    item = await job_item(store, job.id)
    assert (item.status, item.attempts, item.max_attempts) == (JobStatus.QUEUED, 1, 3)
    assert (item.last_error, item.failure_type) == ("no response", None)
    assert item.finished_at is None
    later = item.available_at - before.available_at
    assert timedelta(seconds=89) < later < timedelta(seconds=100)
    assert raw_db.rows("SELECT job, number, worker, error FROM onceward.attempts") == [
        (job.id, 1, "worker-1", "no response")
    ]
    lasted = raw_db.value("SELECT ended_at - started_at FROM onceward.attempts")
    seconds = lasted / 1_000_000 if raw_db.is_sqlite else lasted.total_seconds()
    assert seconds == pytest.approx(2.0, abs=0.01)


async def test_every_failed_attempt_is_stored(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival())
    for number in (1, 2):
        leased = await lease(store)
        await store.settle_error(
            leased.token, leased.jobs[0].id, Reschedule(0.0, f"error {number}"), 0.1
        )
    leased = await lease(store)
    await store.settle_error(
        leased.token, leased.jobs[0].id, Fail(FailureType.EXHAUSTED, "error 3"), 0.1
    )
    assert raw_db.rows("SELECT number, error FROM onceward.attempts ORDER BY number") == [
        (1, "error 1"),
        (2, "error 2"),
        (3, "error 3"),
    ]


async def test_a_success_clears_the_last_error_and_keeps_the_attempts(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    await store.settle_error(token, job.id, Reschedule(0.0, "no response"), 0.1)
    again = await lease(store)
    assert await store.settle_done(again.token, job.id)
    item = await job_item(store, job.id)
    assert (item.attempts, item.last_error) == (2, None)
    assert raw_db.count("onceward.attempts") == 1


async def test_a_failure_stores_its_type_and_error(store: Store, subtests: pytest.Subtests) -> None:
    for failure in FailureType:
        with subtests.test(str(failure)):
            token, job = await leased_job(store, failure)
            assert await store.settle_error(token, job.id, Fail(failure, "no such account"), 0.1)
            item = await job_item(store, job.id)
            assert (item.status, item.failure_type) == (JobStatus.FAILED, failure)
            assert (item.last_error, item.attempts) == ("no such account", 1)
            assert item.finished_at is not None
            events = await store.events(EVERYTHING)
            (event,) = [event for event in events if event.event_id == failure]
            assert event.processing_state is ProcessingState.FAILED
            assert event.processed_at == item.finished_at


async def test_an_error_text_is_stored_unchanged(store: Store) -> None:
    token, job = await leased_job(store)
    text = "100% of 'it' :name %(x)s \\ \N{SNOWMAN}\nline two"
    await store.settle_error(token, job.id, Reschedule(0.0, text), 0.1)
    assert (await job_item(store, job.id)).last_error == text


async def test_settling_one_job_leaves_the_others_leased(store: Store) -> None:
    await store.record(arrivals(3))
    leased = await lease(store)
    first, second, third = (job.id for job in leased.jobs)
    await store.settle_error(leased.token, second, Reschedule(0.0, "again"), 0.1)
    assert [job.id for job in (await lease(store)).jobs] == [second]
    assert await store.settle_done(leased.token, first)
    assert await store.settle_error(leased.token, third, Reschedule(0.0, "again"), 0.1)


async def test_a_done_job_is_never_claimed_again(store: Store, raw_db: RawDatabase) -> None:
    token, job = await leased_job(store)
    await store.settle_done(token, job.id)
    raw_db.expire_leases()
    raw_db.make_due()
    for solo in (False, True):
        assert (await claim(store, solo=solo)).lease is None
    assert await store.requeue(job.id, ACT) is None
    assert await store.job_status(job.id) is JobStatus.DONE


async def test_the_state_of_an_event_follows_its_job(store: Store) -> None:
    await store.register([], [], [])
    await record(store, arrival(type="order.new"), arrival("other"))
    (event,) = [item for item in await store.events(EVERYTHING) if item.event_id == "evt_1"]
    assert (event.processing_state, event.processed_at) == (ProcessingState.PENDING, None)
    leased = await lease(store, handlers=["notify"])
    (event,) = [item for item in await store.events(EVERYTHING) if item.event_id == "evt_1"]
    assert event.processing_state is ProcessingState.PROCESSING
    await store.settle_done(leased.token, leased.jobs[0].id)
    (event,) = [item for item in await store.events(EVERYTHING) if item.event_id == "evt_1"]
    assert event.processing_state is ProcessingState.SUCCEEDED


async def test_a_postponed_job_is_due_later_and_counts_no_attempt(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    assert await store.settle_error(token, job.id, Postpone(30.0, "no connection"), 0.1)
    item = await job_item(store, job.id)
    assert (item.status, item.attempts, item.last_error) == (JobStatus.QUEUED, 0, "no connection")
    assert raw_db.count("onceward.attempts") == 0
    assert (await claim(store)).lease is None
    raw_db.make_due()
    assert [again.id for again in (await lease(store)).jobs] == [job.id]
    assert not await store.settle_error(token, job.id, Postpone(30.0, "late"), 0.1)


async def test_a_job_whose_attempts_were_reset_manually_is_settled(
    store: Store, raw_db: RawDatabase
) -> None:
    """Its attempt of this number exists. Otherwise it would fail to settle again and again."""
    token, job = await leased_job(store)
    assert await store.settle_error(token, job.id, BROKEN, 0.1)
    raw_db.rows("UPDATE onceward.jobs SET status = 'queued', attempts = 0, finished_at = NULL")
    leased = await lease(store)
    assert await store.settle_error(leased.token, job.id, BROKEN, 0.1)
    assert await store.job_status(job.id) is JobStatus.FAILED
    assert raw_db.count("onceward.attempts") == 1
