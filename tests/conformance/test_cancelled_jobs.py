"""An operator may cancel a job that has not ended; what its handler wrote is rolled back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from onceward.errors import LeaseLost, NotInState, StoreBlocked
from onceward.model.admin import PageQuery
from onceward.model.events import ProcessingState
from onceward.model.jobs import CANCELLABLE, JobStatus, Reschedule
from onceward.ports import Store, StoreTransaction
from onceward.runtime.failpoints import FailpointReached
from onceward.runtime.sql_text import parse
from onceward.store.locks import Lock
from onceward.store.postgres import lock_timeout
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import (
    ACT,
    EVERYTHING,
    arrival,
    arrivals,
    claim,
    failed_job,
    job_item,
    lease,
    leased_job,
    opened,
    record,
    settle_in_flight,
    start_task,
    working,
)

TABLE = "CREATE TABLE accounts (customer text)"
INSERT = "INSERT INTO accounts (customer) VALUES ('Ann')"


async def job_in(store: Store, raw_db: RawDatabase, status: str, event_id: str = "evt_1") -> int:
    """Return the id of a job in a state."""
    token, job = await leased_job(store, event_id)
    if status != "in_progress":
        await store.end_leases([token])
        raw_db.rows(f"UPDATE onceward.jobs SET status = '{status}' WHERE id = {job.id}")  # noqa: S608 - the test's own values
    return job.id


async def test_a_cancellation_is_recorded_in_the_audit_trail(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for status in sorted(CANCELLABLE):
        with subtests.test(str(status)):
            job = await job_in(store, raw_db, status, status)
            own = PageQuery(limit=9, event_id=status)
            cancelled = await store.cancel(job, ACT)
            assert cancelled is not None
            item = await job_item(store, job)
            assert (item.status, item.finished_at) == (JobStatus.CANCELLED, cancelled.finished_at)
            assert cancelled.job == str(job)
            assert await store.audit(own) == [cancelled.audit]
            assert (cancelled.audit.action, cancelled.audit.job_id) == ("cancel", str(job))
            assert (cancelled.audit.actor, cancelled.audit.reason) == (ACT.actor, ACT.reason)
            assert (await claim(store)).lease is None
            (event,) = await store.events(own)
            assert event.processing_state is ProcessingState.IGNORED
            assert event.processed_at == item.finished_at


@pytest.mark.parametrize("status", sorted(set(JobStatus) - CANCELLABLE))
async def test_a_job_that_ended_cannot_be_cancelled(
    store: Store, raw_db: RawDatabase, status: str
) -> None:
    job = await job_in(store, raw_db, status)
    before = raw_db.rows("SELECT * FROM onceward.jobs")
    with pytest.raises(NotInState, match=f"Job {job} is {status}; only failed, ignored, in_"):
        await store.cancel(job, ACT)
    assert raw_db.rows("SELECT * FROM onceward.jobs") == before
    assert await store.audit(EVERYTHING) == []


async def test_a_finished_job_stays_in_its_lease(store: Store, raw_db: RawDatabase) -> None:
    token, job = await leased_job(store)
    await store.settle_done(token, job.id)
    before = raw_db.rows("SELECT * FROM onceward.leases")
    with pytest.raises(NotInState):
        await store.cancel(job.id, ACT)
    assert raw_db.rows("SELECT * FROM onceward.leases") == before


async def test_an_unknown_job_cannot_be_cancelled(store: Store) -> None:
    assert await store.cancel(404, ACT) is None
    assert await store.audit(EVERYTHING) == []


async def test_a_cancelled_job_keeps_its_error_and_is_not_failed(
    store: Store, raw_db: RawDatabase
) -> None:
    job = await failed_job(store)
    raw_db.rows("UPDATE onceward.jobs SET parked = true")
    await store.cancel(job.id, ACT)
    item = await job_item(store, job.id)
    assert (item.failure_type, item.last_error) == (None, "no such account")
    assert not raw_db.value("SELECT parked FROM onceward.jobs")


async def test_an_event_with_another_job_has_the_state_of_that_one(
    store: Store, raw_db: RawDatabase
) -> None:
    job = await job_in(store, raw_db, "queued")
    raw_db.rows(
        "INSERT INTO onceward.jobs (event, received_at, available_at, created_at, handler, "
        "max_attempts, status) SELECT event, received_at, available_at, created_at, handler + 1, "
        "1, 'done' FROM onceward.jobs"
    )
    await store.cancel(job, ACT)
    (event,) = await store.events(EVERYTHING)
    assert event.processing_state is ProcessingState.SUCCEEDED


async def test_a_cancelled_job_can_be_requeued_and_runs(store: Store) -> None:
    _, job = await leased_job(store)
    await store.cancel(job.id, ACT)
    assert await store.requeue(job.id, ACT) is not None
    (again,) = (await lease(store)).jobs
    assert (again.id, again.attempts) == (job.id, 0)


async def test_a_requeued_job_is_not_parked(store: Store, raw_db: RawDatabase) -> None:
    job = await failed_job(store)
    raw_db.rows("UPDATE onceward.jobs SET parked = true")
    await store.requeue(job.id, ACT)
    assert not raw_db.value("SELECT parked FROM onceward.jobs")


async def test_one_of_many_concurrent_cancellations_lands(store: Store) -> None:
    _, job = await leased_job(store)
    calls = (store.cancel(job.id, ACT) for _ in range(6))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, NotInState) for result in results) == 5
    assert len(await store.audit(EVERYTHING)) == 1


async def test_a_cancellation_that_does_not_commit_changes_nothing(database_url: str) -> None:
    async with opened(database_url) as store:
        _, job = await leased_job(store)
    async with opened(database_url, serving=False, failpoints="operate.written:raise:2") as store:
        with pytest.raises(FailpointReached):
            await store.cancel(job.id, ACT)
        assert await store.job_status(job.id) is JobStatus.IN_PROGRESS
        assert await store.audit(EVERYTHING) == []


# Jobs in progress.


async def test_a_cancelled_job_leaves_its_lease_and_no_other_does(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, *arrivals(3))
    leased = await lease(store)
    raw_db.rows("UPDATE onceward.leases SET guarded = jobs")
    first, second, third = (job.id for job in leased.jobs)
    await store.cancel(second, ACT)
    named = raw_db.rows("SELECT jobs, guarded FROM onceward.leases")
    assert [str(part).replace(" ", "") for part in named[0]] == [
        str([first, third]).replace(" ", ""),
        str([first, second, third]).replace(" ", ""),
    ]
    assert not await store.settle_done(leased.token, second)
    assert await store.settle_done(leased.token, first, third)


async def test_no_settlement_of_a_cancelled_job_lands(store: Store, raw_db: RawDatabase) -> None:
    token, job = await leased_job(store)
    await store.cancel(job.id, ACT)
    before = raw_db.rows("SELECT * FROM onceward.jobs")
    assert not await store.settle_done(token, job.id)
    assert not await store.settle_error(token, job.id, Reschedule(0.0, "again"), 0.1)
    assert raw_db.rows("SELECT * FROM onceward.jobs") == before
    assert raw_db.count("onceward.attempts") == 0


async def test_nothing_of_a_cancelled_handler_is_committed(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.rows(TABLE)
    token, job = await leased_job(store)
    await store.cancel(job.id, ACT)
    async with working(store) as work:
        await work.tx.execute(INSERT)
        with pytest.raises(LeaseLost):
            await work.unit.settle(token, job.id)
    assert raw_db.count("accounts") == 0
    assert await store.job_status(job.id) is JobStatus.CANCELLED


# The next job of the key.


async def keyed(store: Store, raw_db: RawDatabase, count: int = 3) -> list[int]:
    """Return jobs of one key; all but the first are parked."""
    await record(store, *arrivals(count))
    ids = [job for (job,) in raw_db.rows("SELECT id FROM onceward.jobs ORDER BY event")]
    raw_db.rows(f"UPDATE onceward.jobs SET ordering_key = 'a', parked = (id <> {ids[0]})")  # noqa: S608 - the test's own values
    return ids


def parked(raw_db: RawDatabase) -> list[int]:
    return [job for (job,) in raw_db.rows("SELECT id FROM onceward.jobs WHERE parked ORDER BY id")]


async def test_a_cancellation_wakes_the_next_job_of_the_key(
    store: Store, raw_db: RawDatabase
) -> None:
    first, second, third = await keyed(store, raw_db)
    await store.cancel(first, ACT)
    assert parked(raw_db) == [third]
    await store.cancel(second, ACT)
    assert parked(raw_db) == []


async def test_a_cancelled_failure_no_longer_holds_its_key(
    store: Store, raw_db: RawDatabase
) -> None:
    first, _, third = await keyed(store, raw_db)
    raw_db.rows(f"UPDATE onceward.jobs SET status = 'failed' WHERE id = {first}")  # noqa: S608 - the test's own values
    await store.cancel(first, ACT)
    assert parked(raw_db) == [third]


async def test_cancelling_a_later_job_wakes_none_before_its_turn(
    store: Store, raw_db: RawDatabase
) -> None:
    _, second, third = await keyed(store, raw_db)
    await store.cancel(second, ACT)
    assert parked(raw_db) == [third]


@pytest.mark.parametrize(
    ("failure", "holds", "wakes"),
    [("permanent", True, False), ("permanent", False, True), ("held", True, True)],
)
async def test_a_failed_job_of_the_key_decides_whether_the_next_one_wakes(
    store: Store, raw_db: RawDatabase, failure: str, *, holds: bool, wakes: bool
) -> None:
    first, second, third = await keyed(store, raw_db)
    raw_db.rows(
        f"UPDATE onceward.jobs SET status = 'failed', failure_type = '{failure}', parked = false "  # noqa: S608 - the test's own values
        f"WHERE id = {second}"
    )
    raw_db.rows(f"UPDATE onceward.handlers SET holds_key = {holds}")  # noqa: S608 - the test's own values
    await store.cancel(first, ACT)
    assert parked(raw_db) == ([] if wakes else [third])


async def test_other_keys_and_handlers_are_left_alone(store: Store, raw_db: RawDatabase) -> None:
    first, second, third = await keyed(store, raw_db)
    raw_db.rows(f"UPDATE onceward.jobs SET ordering_key = 'b' WHERE id = {second}")  # noqa: S608 - the test's own values
    raw_db.rows(f"UPDATE onceward.jobs SET handler = handler + 1 WHERE id = {third}")  # noqa: S608 - the test's own values
    await store.cancel(first, ACT)
    assert parked(raw_db) == [second, third]


# Races with settlements, on PostgreSQL: elsewhere one excludes the other.


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[tuple[Store, RawDatabase]]:
    """Open a store with a table of the app."""
    raw_db = RawDatabase(postgres_url)
    raw_db.rows(TABLE)
    async with opened(postgres_url) as store:
        yield store, raw_db


@asynccontextmanager
async def handling(store: Store) -> AsyncIterator[StoreTransaction]:
    """Run a handler up to its settlement."""
    async with store.begin(lambda: "credit") as transaction:
        await transaction.run(parse(INSERT)[0], {})
        yield transaction


async def until_blocked(raw_db: RawDatabase, count: int = 1) -> None:
    """Wait until this many sessions wait for locks."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    async def is_blocked() -> bool:
        return bool(raw_db.value(waiting) >= count)

    await eventually_async(is_blocked, "the sessions wait for locks")


async def test_a_cancellation_waits_for_a_settlement_in_flight(
    postgres: tuple[Store, RawDatabase],
) -> None:
    store, raw_db = postgres
    token, job = await leased_job(store)
    async with handling(store) as transaction:
        await settle_in_flight(transaction, token, job.id)
        cancelling = await start_task(store.cancel(job.id, ACT))
        await until_blocked(raw_db)
        await record(store, arrival("evt_2"))
        assert len((await asyncio.wait_for(lease(store), 1)).jobs) == 1  # workers still claim
        assert not cancelling.done()
        await transaction.commit()
    with pytest.raises(NotInState, match=f"Job {job.id} is done"):
        await cancelling
    assert raw_db.count("accounts") == 1
    assert await store.audit(EVERYTHING) == []


async def test_a_cancellation_lands_when_the_settlement_in_flight_rolls_back(
    postgres: tuple[Store, RawDatabase],
) -> None:
    store, raw_db = postgres
    token, job = await leased_job(store)
    async with handling(store) as transaction:
        await settle_in_flight(transaction, token, job.id)
        cancelling = await start_task(store.cancel(job.id, ACT))
        await until_blocked(raw_db)
    assert await cancelling is not None
    assert raw_db.count("accounts") == 0
    assert not await store.settle_done(token, job.id)


@contextmanager
def locked(raw_db: RawDatabase, statement: str) -> Iterator[None]:
    """Lock a row in another session."""
    with psycopg.connect(raw_db.url) as connection:
        connection.execute(f"{statement} FOR UPDATE".encode())
        yield


async def test_a_settlement_waits_for_a_cancellation_and_rolls_back(
    postgres: tuple[Store, RawDatabase],
) -> None:
    store, raw_db = postgres
    token, job = await leased_job(store)
    await record(store, arrival("evt_2"))
    raw_db.rows(f"UPDATE onceward.jobs SET ordering_key = 'a', parked = (id <> {job.id})")  # noqa: S608 - the test's own values
    async with handling(store) as transaction:
        # The cancellation has written everything but the next job of the key.
        with locked(raw_db, f"SELECT 1 FROM onceward.jobs WHERE id <> {job.id}"):  # noqa: S608 - the test's own values
            cancelling = await start_task(store.cancel(job.id, ACT))
            await until_blocked(raw_db)
            settling = await start_task(transaction.commit_done({token: [job.id]}))
            await until_blocked(raw_db, 2)
        assert await cancelling is not None
        with pytest.raises(LeaseLost):
            await settling
    assert raw_db.count("accounts") == 0
    assert await store.job_status(job.id) is JobStatus.CANCELLED


@pytest.mark.parametrize("first", ["cancel", "settle"])
async def test_a_failure_and_a_cancellation_exclude_each_other(
    postgres: tuple[Store, RawDatabase], first: str
) -> None:
    """Both write the lease and then the job, so that they cannot deadlock."""
    store, raw_db = postgres
    token, job = await leased_job(store)
    settlement = Reschedule(0.0, "again")
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "cancel": lambda: store.cancel(job.id, ACT),
        "settle": lambda: store.settle_error(token, job.id, settlement, 0.1),
    }
    with locked(raw_db, "SELECT 1 FROM onceward.leases"):
        tasks = {}
        for number, name in enumerate([first, *(set(calls) - {first})], start=1):
            tasks[name] = await start_task(calls[name]())
            await until_blocked(raw_db, number)
    assert await tasks["cancel"] is not None
    landed = await tasks["settle"]
    assert landed == (first == "settle")
    assert raw_db.count("onceward.attempts") == int(landed)
    assert await store.job_status(job.id) is JobStatus.CANCELLED


async def test_many_cancellations_and_settlements_leave_each_job_with_one_end(
    postgres: tuple[Store, RawDatabase],
) -> None:
    store, raw_db = postgres
    await record(store, *arrivals(40))
    leased = await lease(store, limit=40)

    async def settle(job: int) -> bool:
        async with handling(store) as transaction:
            try:
                await transaction.commit_done({leased.token: [job]})
            except LeaseLost:
                return False
            return True

    async def cancel(job: int) -> bool:
        try:
            return await store.cancel(job, ACT) is not None
        except NotInState:
            return False

    ids = [job.id for job in leased.jobs]
    settled, cancelled = await asyncio.gather(
        asyncio.gather(*map(settle, ids)), asyncio.gather(*map(cancel, reversed(ids)))
    )
    assert [one + other for one, other in zip(settled, reversed(cancelled), strict=True)] == [
        1
    ] * 40
    assert raw_db.count("accounts") == sum(settled)
    assert len(await store.audit(EVERYTHING)) == sum(cancelled)


async def test_a_cancellation_does_not_stop_claims_for_long(
    postgres: tuple[Store, RawDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_timeout, "CLAIMS_TIMEOUT_SECONDS", 0.2)
    store, raw_db = postgres
    _, job = await leased_job(store)
    with (
        locked(raw_db, "SELECT 1 FROM onceward.leases"),
        pytest.raises(StoreBlocked, match="holds a lock on Onceward's tables"),
    ):
        await asyncio.wait_for(store.cancel(job.id, ACT), 3)
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS
    assert await store.cancel(job.id, ACT) is not None


async def test_a_frozen_cancellation_does_not_stop_claims_for_long(
    postgres: tuple[Store, RawDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_timeout, "CLAIMS_TIMEOUT_SECONDS", 0.2)
    store, raw_db = postgres
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"

    async def freeze() -> None:
        async with store._transaction(Lock.CLAIMS):  # type: ignore[attr-defined]
            await asyncio.sleep(1.0)

    frozen = await start_task(freeze())
    assert raw_db.value(idle) == 1
    await asyncio.wait_for(claim(store), 0.8)
    assert not frozen.done()
    await asyncio.wait([frozen])
    assert frozen.exception() is not None
