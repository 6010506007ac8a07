"""A worker that waits is woken when there may be work, whoever made it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import ACT, arrival, failed_job, leased_job, opened, record


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[asyncio.Event]:
    """An event that is set by each announcement, once those from before are over."""
    woken = asyncio.Event()

    async def listen() -> None:
        async with aclosing(store.announcements()) as announcements:
            async for _ in announcements:
                woken.set()

    listener = asyncio.create_task(listen())
    await asyncio.wait_for(woken.wait(), 2.0)  # whatever came while nobody listened
    await asyncio.sleep(0.05)
    woken.clear()
    yield woken
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)


async def test_a_recorded_event_wakes(store: Store) -> None:
    async with listening(store) as woken:
        await record(store, arrival())
        await asyncio.wait_for(woken.wait(), 2.0)


async def test_a_requeue_wakes(store: Store) -> None:
    job = await failed_job(store)
    async with listening(store) as woken:
        await store.requeue(job.id, ACT)
        await asyncio.wait_for(woken.wait(), 2.0)


async def test_giving_back_wakes(store: Store) -> None:
    token, job = await leased_job(store)
    async with listening(store) as woken:
        await store.release(token, [job.id])
        await asyncio.wait_for(woken.wait(), 2.0)


async def test_a_redelivery_wakes_nobody(store: Store) -> None:
    await record(store, arrival())
    async with listening(store) as woken:
        await record(store, arrival(), arrival(body=b"other"))
        await asyncio.sleep(0.1)
        assert not woken.is_set()


async def test_another_machine_is_woken_and_not_by_what_nobody_wants(postgres_url: str) -> None:
    async with (
        opened(postgres_url) as receiver,
        opened(postgres_url) as worker,
        listening(worker) as woken,
    ):
        await record(receiver, arrival("unwanted", type="nobody.wants"))
        await asyncio.sleep(0.1)
        assert not woken.is_set()
        await record(receiver, arrival())
        await asyncio.wait_for(woken.wait(), 2.0)


async def test_a_lost_connection_is_made_anew(postgres_url: str) -> None:
    async with opened(postgres_url) as store, listening(store) as woken:
        RawDatabase(postgres_url).rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
        await asyncio.wait_for(woken.wait(), 5.0)  # for what was missed meanwhile
        woken.clear()
        await record(store, arrival())
        await asyncio.wait_for(woken.wait(), 2.0)
