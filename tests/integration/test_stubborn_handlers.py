"""Handlers that ignore cancellation or occupy slots do not block other handlers."""

import asyncio
import time
from typing import Any

import pytest

from onceward import Event, Inbox
from onceward.model.jobs import JobStatus
from onceward.runtime import timeouts
from onceward.work.claiming import scheduler
from support.processes import eventually_async
from tests.inprocess import run_inbox

SLOW_SECONDS = 3.0


async def test_the_timeout_of_the_settings_ends_a_handler_without_its_own(sqlite_url: str) -> None:
    inbox = Inbox()

    @inbox.on("slow", max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(SLOW_SECONDS)

    async with run_inbox(inbox, sqlite_url, handler_timeout_seconds=0.1) as bench:
        job = await bench.run_event("slow")
    assert (job.status, job.last_error) == (JobStatus.FAILED, "slow took longer than 0.1 s")


async def test_a_handler_that_ignores_its_cancellation_fails_with_a_timeout(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "GRACE_SECONDS", 0.1)
    inbox = Inbox()
    end = time.monotonic() + SLOW_SECONDS

    @inbox.on("stubborn", timeout_seconds=0.1, max_attempts=1)
    async def stubborn() -> None:
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    @inbox.on("cancels", max_attempts=1)
    async def cancels() -> None:
        raise asyncio.CancelledError

    async with run_inbox(inbox, database_url, workers=4) as bench:
        job = await bench.run_event("stubborn")
        assert time.monotonic() < end
        assert (job.status, job.last_error) == (
            JobStatus.FAILED,
            "stubborn took longer than 0.1 s",
        )
        await bench.post("cancels", event_id="evt_2")
        await bench.wait_until_idle()
        assert (await bench.job("evt_2")).last_error == "cancels cancelled itself"


async def test_a_free_slot_is_used_while_slow_handlers_occupy_the_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        scheduler, "prefetch_limit", lambda workers, _: workers
    )  # as if handlers were slow
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


async def test_jobs_behind_one_that_hangs_are_given_back(database_url: str) -> None:
    inbox = Inbox()
    release = asyncio.Event()

    @inbox.on("work")
    async def work(event: Event[Any]) -> None:
        if event.id != "quick":
            await release.wait()

    async with run_inbox(inbox, database_url, workers=1) as bench:
        await bench.post("work", event_id="quick")
        await bench.wait_until_idle()
        for number in range(3):
            await bench.post("work", event_id=f"evt_{number}")

        async def running() -> int:
            jobs = [await bench.job(f"evt_{number}") for number in range(3)]
            return sum(job.status is JobStatus.IN_PROGRESS for job in jobs)

        async def are_claimed_ahead() -> bool:
            return await running() == 3

        async def are_given_back() -> bool:
            return await running() == 1

        await eventually_async(are_claimed_ahead, "the jobs are claimed ahead")
        await eventually_async(are_given_back, "all but the one that runs are given back")
        release.set()
        await bench.wait_until_idle()
