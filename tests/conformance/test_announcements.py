"""An idle worker is notified when jobs may have become due, in any process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import ACT, arrival, failed_job, leased_job, opened, record


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[asyncio.Event]:
    """Yield an event that each later announcement sets."""
    announced = asyncio.Event()

    async def listen() -> None:
        async with aclosing(store.announcements()) as announcements:
            async for _ in announcements:
                announced.set()

    listener = asyncio.create_task(listen())
    await asyncio.wait_for(announced.wait(), 2.0)  # the first announcement stands for missed ones
    await asyncio.sleep(0.05)
    announced.clear()
    yield announced
    listener.cancel()
    await asyncio.gather(listener, return_exceptions=True)


async def test_a_recorded_event_is_announced(store: Store) -> None:
    async with listening(store) as announced:
        await record(store, arrival())
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_requeue_is_announced(store: Store) -> None:
    job = await failed_job(store)
    async with listening(store) as announced:
        await store.requeue(job.id, ACT)
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_release_is_announced(store: Store) -> None:
    token, job = await leased_job(store)
    async with listening(store) as announced:
        await store.release(token, [job.id])
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_redelivery_is_not_announced(store: Store) -> None:
    await record(store, arrival())
    async with listening(store) as announced:
        await record(store, arrival(), arrival(body=b"other"))
        await asyncio.sleep(0.1)
        assert not announced.is_set()


async def test_only_events_with_jobs_are_announced_to_other_processes(postgres_url: str) -> None:
    async with (
        opened(postgres_url) as receiver,
        opened(postgres_url) as worker,
        listening(worker) as announced,
    ):
        await record(receiver, arrival("unwanted", type="no.handler"))
        await asyncio.sleep(0.1)
        assert not announced.is_set()
        await record(receiver, arrival())
        await asyncio.wait_for(announced.wait(), 2.0)


async def test_a_lost_connection_is_opened_again(postgres_url: str) -> None:
    async with opened(postgres_url) as store, listening(store) as announced:
        RawDatabase(postgres_url).rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
        await asyncio.wait_for(announced.wait(), 5.0)  # announcements may have been missed
        announced.clear()
        await record(store, arrival())
        await asyncio.wait_for(announced.wait(), 2.0)
