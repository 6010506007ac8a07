"""Handlers that will not end, or that keep their slots, hold up nobody else."""

import asyncio
import time

import pytest

from onceward import Inbox
from onceward.model.jobs import JobStatus
from onceward.runtime import timeouts as watch
from onceward.work import worker
from support.processes import eventually_async
from tests.inprocess import run_inbox

SLOW_SECONDS = 3.0


async def test_a_handler_that_swallows_its_cancellation_is_left_to_itself(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.1)
    inbox = Inbox()
    ends = time.monotonic() + SLOW_SECONDS

    @inbox.on("stubborn", timeout_seconds=0.1, max_attempts=1)
    async def stubborn() -> None:
        while time.monotonic() < ends:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    @inbox.on("cancels", max_attempts=1)
    async def cancels() -> None:
        raise asyncio.CancelledError

    async with run_inbox(inbox, database_url, workers=4) as bench:
        job = await bench.run_event("stubborn")
        assert time.monotonic() < ends
        assert (job.status, job.last_error) == (
            JobStatus.FAILED,
            "stubborn took longer than 0.1 s",
        )
        await bench.post("cancels", event_id="evt_2")
        await bench.wait_until_idle()
        assert (await bench.job("evt_2")).last_error == "cancels was cancelled from inside"


async def test_slots_are_filled_while_slow_handlers_hold_the_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "batch_size", lambda workers, _: workers)  # as for slow handlers
    inbox = Inbox()
    release = asyncio.Event()

    @inbox.on("slow")
    async def slow() -> None:
        await release.wait()

    @inbox.on("quick")
    async def quick() -> None:
        pass

    async with run_inbox(inbox, database_url, workers=4) as bench:
        for number in range(3):
            await bench.post("slow", event_id=f"slow-{number}")
        for number in range(5):
            event_id = f"quick-{number}"
            await bench.post("quick", event_id=event_id)

            async def is_done(event_id: str = event_id) -> bool:
                return (await bench.job(event_id)).status is JobStatus.DONE

            await eventually_async(is_done, f"{event_id} is done")
        release.set()
        await bench.wait_until_idle()
