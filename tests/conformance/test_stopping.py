"""A worker that stops leaves neither leases nor a heartbeat behind, unless its store is away."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from onceward import Inbox, Transaction
from onceward.errors import StoreUnavailable
from onceward.work import worker as worker_module
from onceward.work.running import batching
from onceward.work.running.runner import JobRunner
from onceward.work.worker import Worker
from support.database import RawDatabase
from support.processes import eventually_async
from tests.inprocess import RunningInbox, receive_only


class Handling:
    """An inbox whose handler waits, and a worker that runs it."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()
        self.worker: Worker
        self.task: asyncio.Task[None]
        self.bench: RunningInbox

        @self.inbox.on("a")
        async def handle() -> None:
            self.started.set()
            await self.may_end.wait()

        @self.inbox.on("shared", transaction="shared")
        async def fail(tx: Transaction) -> None:
            await handle()
            raise ValueError

    async def stop(self) -> None:
        self.worker.stop()
        async with asyncio.timeout(10):
            await self.task


@asynccontextmanager
async def handling(
    url: str, events: int, *, type: str = "a", **settings: float
) -> AsyncIterator[Handling]:
    """Let a worker claim events and run the first of them."""
    running = Handling()
    async with receive_only(running.inbox, url, workers=1, poll_seconds=60.0, **settings) as bench:
        running.bench = bench
        running.worker = bench.service.worker()
        running.worker._scheduler.complete_job("handle", 0.0)  # quick, so claimed ahead
        for number in range(events):
            await bench.post(type, event_id=f"evt_{number}")
        running.task = asyncio.create_task(running.worker.run())
        await asyncio.wait_for(running.started.wait(), 5)
        await eventually_async(bench.store.live_workers, "the worker has a heartbeat")
        yield running


def rows_left(raw_db: RawDatabase) -> dict[str, int]:
    return {name: raw_db.count(f"onceward.{name}") for name in ("leases", "workers", "attempts")}


NOTHING = {"leases": 0, "workers": 0, "attempts": 0}


async def statuses(bench: RunningInbox) -> Counter[str]:
    return Counter(job.status for job in (await bench.jobs()).values())


async def test_jobs_that_end_after_the_stop_are_done_and_the_others_are_released(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with handling(database_url, 3) as running:
        assert await statuses(running.bench) == {"in_progress": 3}
        running.worker.stop()

        async def are_released() -> bool:
            return await statuses(running.bench) == {"in_progress": 1, "queued": 2}

        await eventually_async(are_released, "other workers can claim the jobs that wait")
        running.may_end.set()
        await running.stop()
        assert await statuses(running.bench) == {"done": 1, "queued": 2}
    assert rows_left(raw_db) == NOTHING


async def test_a_job_that_outlasts_the_drain_is_released(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with handling(database_url, 1, drain_seconds=0.1) as running:
        await running.stop()
        assert await statuses(running.bench) == {"queued": 1}
    assert rows_left(raw_db) == NOTHING


async def test_jobs_of_a_batch_that_fails_after_the_stop_are_released(
    database_url: str, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "SHARED_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(JobRunner, "may_share", lambda *_: True)  # though not known to be quick
    async with handling(database_url, 3, type="shared") as running:
        asyncio.get_running_loop().call_later(0.1, running.may_end.set)
        await running.stop()
        assert await statuses(running.bench) == {"queued": 3}
    assert rows_left(raw_db) == NOTHING


@pytest.mark.parametrize("call", ["release", "end_leases"])
async def test_a_worker_whose_store_is_away_stops_without_further_calls(
    database_url: str, raw_db: RawDatabase, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def refuse(*_: object) -> None:
        calls.append(call)
        raise StoreUnavailable("away")

    async with handling(database_url, 3) as running:
        monkeypatch.setattr(running.bench.store, call, refuse)
        asyncio.get_running_loop().call_later(0.1, running.may_end.set)
        await running.stop()
        assert await running.bench.store.live_workers()  # its row expires
    assert calls == [call]
    assert raw_db.count("onceward.leases") == 1


async def test_a_claim_without_a_response_does_not_keep_a_worker_from_stopping(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "GRACE_SECONDS", 0.1)
    is_claiming = asyncio.Event()

    async def hang(_: object) -> None:
        is_claiming.set()
        await asyncio.Event().wait()

    running = Handling()
    async with receive_only(running.inbox, database_url) as bench:
        monkeypatch.setattr(bench.store, "claim", hang)
        running.worker = bench.service.worker()
        running.task = asyncio.create_task(running.worker.run())
        await asyncio.wait_for(is_claiming.wait(), 5)
        await eventually_async(bench.store.live_workers, "the worker has a heartbeat")
        await running.stop()
        assert await bench.store.live_workers()  # the store is away: its row expires


async def test_a_background_task_that_does_not_end_does_not_delay_the_close(
    database_url: str,
) -> None:
    """A cancelled statement waits for a frozen database until its own limit."""
    may_end = asyncio.Event()

    async def hang() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    async with receive_only(Inbox(), database_url) as bench:
        hanging = asyncio.create_task(hang())
        bench.service._background.append(hanging)
        await asyncio.sleep(0)
        await asyncio.wait_for(bench.service.close(), 10)
        assert not hanging.done()
        may_end.set()
        await hanging
