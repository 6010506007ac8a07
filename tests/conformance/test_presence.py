"""A dead worker's jobs come back within seconds; a live one that lost its session keeps them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from onceward.model.jobs import Claim, JobStatus
from onceward.ports import Store
from onceward.store.locks import PRESENCE_NAMESPACE
from onceward.store.postgres import claiming
from support.database import RawDatabase
from tests.factories import arrivals, claim, job_item, lease, opened

SESSIONS = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND "  # noqa: S608 - no outside data
    f"classid = {PRESENCE_NAMESPACE} AND mode = 'ExclusiveLock' AND granted"
)

GRACE_SECONDS = claiming.GRACE_SECONDS


@asynccontextmanager
async def present(store: Store) -> AsyncIterator[int]:
    """Hold the presence of a worker, and give its number."""
    async with aclosing(store.presence()) as numbers:
        yield await anext(numbers)


async def claimed_until(store: Store, owner: int, is_enough: Callable[[Claim], bool]) -> Claim:
    """Claim as another worker until the result fits; the server ends a session in its own time."""
    for _ in range(50):
        claimed = await claim(store, owner=owner + 1)
        if is_enough(claimed):
            return claimed
        await asyncio.sleep(0.1)
    pytest.fail("the worker was not found dead")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "GRACE_SECONDS", 0.3)


def test_the_grace_is_seconds() -> None:
    assert GRACE_SECONDS <= 3


async def test_jobs_of_a_dead_worker_come_back_after_the_grace(postgres_url: str) -> None:
    async with opened(postgres_url) as dying, opened(postgres_url) as other:
        await dying.record(arrivals(3))
        async with present(dying) as owner:
            leased = await lease(dying, owner=owner, slots=1)
            assert (await claim(other, owner=owner + 1)).lease is None
            await asyncio.sleep(0.4)
            assert (await claim(other, owner=owner + 1)).lease is None, "the worker is alive"
        assert (await claim(other, owner=owner + 1)).lease is None, "within the grace"
        again = (await claimed_until(other, owner, lambda claim: claim.lease is not None)).lease
        assert again is not None
        assert [job.id for job in again.jobs] == [job.id for job in leased.jobs[1:]]
        assert (await claim(other, solo=True)).lease is not None, "the first may have killed it"
        assert not await dying.settle_done(leased.token, leased.jobs[0].id)


async def test_a_live_worker_that_lost_its_session_keeps_its_leases(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as worker, opened(postgres_url) as other:
        await worker.record(arrivals(1))
        async with aclosing(worker.presence()) as numbers:
            owner = await anext(numbers)
            leased = await lease(worker, owner=owner)
            raw_db.rows(f"SELECT pg_terminate_backend(pid) FROM ({SESSIONS}) AS sessions")  # noqa: S608 - no outside data
            assert await anext(numbers) == 0, "the session is lost"
            await worker.renew([leased.token], 60.0, owner=0)
            await claim(other, owner=owner + 1)
            await asyncio.sleep(0.4)
            assert (await claim(other, owner=owner + 1)).lease is None
            assert await anext(numbers) == owner, "the lock is taken again"
            await worker.renew([leased.token], 60.0, owner=owner)
            assert (await claim(other, owner=owner + 1)).lease is None
        item = await job_item(other, leased.jobs[0].id)
        assert (item.status, item.attempts) == (JobStatus.IN_PROGRESS, 0)


async def test_a_worker_that_returns_within_the_grace_is_not_dead(postgres_url: str) -> None:
    async with opened(postgres_url) as worker, opened(postgres_url) as other:
        await worker.record(arrivals(1))
        async with present(worker) as owner:
            await lease(worker, owner=owner)
        assert (await claim(other, owner=owner + 1)).lease is None, "the worker is noted as dead"
        with RawDatabase(postgres_url).connection() as connection:
            connection.execute(f"SELECT pg_advisory_lock({PRESENCE_NAMESPACE}, {owner})")
            await asyncio.sleep(0.4)
            assert (await claim(other, owner=owner + 1)).lease is None
            assert (await claim(other, owner=owner + 1, solo=True)).lease is None
        raw_db = RawDatabase(postgres_url)
        assert raw_db.value("SELECT count(*) FROM onceward.leases WHERE dead_since IS NULL") == 1


async def test_an_idle_worker_watches_those_that_hold_leases(postgres_url: str) -> None:
    async with opened(postgres_url) as worker, opened(postgres_url) as other:
        await worker.record(arrivals(1))
        async with present(worker) as owner:
            await lease(worker, owner=owner)
            assert (await claim(worker, owner=owner)).next_due_seconds is None, "its own lease"
            seconds = (await claim(other, owner=owner + 1)).next_due_seconds
            assert seconds == pytest.approx(claiming.WATCH_SECONDS, abs=0.2)
        await claimed_until(
            other,
            owner,
            lambda claim: (claim.next_due_seconds or 9.0) <= claiming.GRACE_SECONDS,
        )


async def test_a_worker_without_a_session_keeps_its_leases_until_they_expire(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as worker, opened(postgres_url) as other:
        await worker.record(arrivals(1))
        await lease(worker, owner=0)
        await claim(other, owner=7)
        await asyncio.sleep(0.4)
        assert (await claim(other, owner=7)).lease is None


async def test_each_worker_has_a_number_of_its_own(postgres_url: str) -> None:
    async with (
        opened(postgres_url) as store,
        present(store) as first,
        present(store) as second,
    ):
        assert first != second
        assert len(RawDatabase(postgres_url).rows(SESSIONS)) == 2


async def test_a_worker_takes_another_number_if_its_own_is_held(postgres_url: str) -> None:
    """A restore may set the sequence back to numbers that live workers hold."""
    async with opened(postgres_url) as store, present(store) as first:
        RawDatabase(postgres_url).rows(f"SELECT setval('onceward.worker_numbers', {first}, false)")
        async with asyncio.timeout(5), present(store) as second:
            assert second != first
