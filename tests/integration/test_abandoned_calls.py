"""Calls that outlive their timeout pause their handler, and nothing else."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from os import getpid
from pathlib import Path
from typing import Any

import pytest

from onceward import Effects, Event, Inbox, SyncTransaction
from onceward.model.admin import JobItem
from onceward.model.jobs import JobStatus
from onceward.runtime import timeouts
from support.processes import APPS, Serve, eventually, eventually_async
from tests.inprocess import RunningInbox, run_inbox

FILE = "tests/integration/test_abandoned_calls.py"
EVENTS = 12
WORKERS = 2


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Return an event that ends the stuck handlers; it is set at the end in any case."""
    event = threading.Event()
    yield event
    event.set()


def handler_threads() -> int:
    return sum(thread.name == "onceward-handler" for thread in threading.enumerate())


async def post_all(bench: RunningInbox) -> None:
    for number in range(EVENTS):
        await bench.post("stuck", event_id=f"stuck-{number}")


async def wait_for_pause(bench: RunningInbox) -> None:
    async def is_paused() -> bool:
        return "stuck" in bench.service._abandoned_calls.paused

    await eventually_async(is_paused, "the handler is paused")


def messages(caplog: pytest.LogCaptureFixture, level: int, text: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and text in record.getMessage()
    ]


@pytest.mark.parametrize("transaction", ["own", "shared"])
async def test_stuck_threads_pause_their_handler_until_one_ends(
    database_url: str,
    release: threading.Event,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    transaction: str,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("onceward.work.definition.handlers._timeout_faults", lambda *_: ())
    inbox = Inbox()

    @inbox.on("stuck", timeout_seconds=0.1, max_attempts=1000, transaction=transaction)  # type: ignore[arg-type]
    def stuck(tx: SyncTransaction) -> None:
        release.wait()

    @inbox.on("quick")
    async def quick() -> None:
        pass

    threads = handler_threads()
    settings = {"workers": WORKERS, "retry_max_seconds": 0.1}
    async with run_inbox(inbox, database_url, **settings) as bench:
        await post_all(bench)
        await wait_for_pause(bench)
        for number in range(20):
            await bench.post("quick", event_id=f"quick-{number}")

        async def are_quick_done() -> bool:
            jobs = await bench.jobs()
            return all(
                job.status is JobStatus.DONE for job in jobs.values() if job.handler == "quick"
            )

        await eventually_async(are_quick_done, "the other handler's jobs are done")
        assert WORKERS <= handler_threads() - threads < 2 * WORKERS

        async def stuck_jobs() -> list[JobItem]:
            return [job for job in (await bench.jobs()).values() if job.handler == "stuck"]

        async def are_stuck_queued() -> bool:
            return {job.status for job in await stuck_jobs()} == {JobStatus.QUEUED}

        await eventually_async(are_stuck_queued, "the calls that had started are timed out")
        jobs = await stuck_jobs()
        assert sum(job.attempts for job in jobs) < 2 * WORKERS
        (warning,) = await bench.warnings()
        assert warning.startswith("A handler is paused in a worker (since ")
        assert "stuck" not in warning
        assert f":{getpid()}" not in warning
        release.set()
        await bench.wait_until_idle()
        assert await bench.warnings() == []
    (line,) = messages(caplog, logging.ERROR, "is paused")
    assert line.startswith(f"handler 'stuck' ({FILE}:{stuck.__code__.co_firstlineno}) is paused: ")
    assert f"calls still run, and `workers` allows {WORKERS}. Its jobs stay queued" in line
    assert "Set timeouts on the calls that it makes, or raise timeout_seconds" in line
    assert len(messages(caplog, logging.INFO, "handler 'stuck'")) == 1
    assert "resumes: one of its timed-out calls has ended, and" in caplog.text


async def test_coroutines_that_ignore_their_cancellation_pause_their_handler(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "GRACE_SECONDS", 0.1)
    inbox = Inbox()
    release = asyncio.Event()
    started = Counter[str]()

    @inbox.on("stuck", timeout_seconds=0.1, max_attempts=1000)
    async def stuck() -> None:
        started["stuck"] += 1
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    settings = {"workers": WORKERS, "retry_max_seconds": 0.1}
    async with run_inbox(inbox, database_url, **settings) as bench:
        await post_all(bench)
        try:
            await wait_for_pause(bench)
            await asyncio.sleep(0.5)  # enough for more attempts, if the handler were not paused
            assert started["stuck"] < 2 * WORKERS
        finally:
            release.set()
        await bench.wait_until_idle()
    assert "Let it end when it is cancelled" in messages(caplog, logging.ERROR, "is paused")[0]


async def test_a_worker_stops_while_abandoned_threads_run(
    database_url: str, release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()

    @inbox.on("stuck", timeout_seconds=0.1, max_attempts=1000)
    def stuck() -> None:
        release.wait()

    async with run_inbox(inbox, database_url, workers=WORKERS, drain_seconds=0.2) as bench:
        await post_all(bench)
        await wait_for_pause(bench)
        started = time.monotonic()
    assert time.monotonic() - started < 3


async def test_calls_that_a_stop_cancels_are_not_reported(
    database_url: str, release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    running = threading.Event()

    @inbox.on("stuck")
    def stuck() -> None:
        running.set()
        release.wait()

    async with run_inbox(inbox, database_url, workers=1, drain_seconds=0.1) as bench:
        await bench.post("stuck")
        await asyncio.to_thread(running.wait, 10)
    assert messages(caplog, logging.ERROR, "is paused") == []


def test_a_process_ends_while_abandoned_threads_run(postgres_url: str, tmp_path: Path) -> None:
    with Serve(
        APPS / "mischief.py", postgres_url, "--workers", "1", forked=True, drain_seconds=0.2
    ) as service:
        service.accept("evt_1", "stuck", {"seconds": 600, "touch": str(tmp_path / "started")})
        eventually((tmp_path / "started").exists, "the handler runs")

        def warnings() -> list[str]:
            answer: list[str] = service.http.get("/readyz").json()["warnings"]
            return answer

        (warning,) = eventually(warnings, "the handler is paused")
        assert warning.startswith("A handler is paused in a worker ")
        service.terminate()
        assert service.wait(5) == 0


async def test_threads_of_calls_that_never_return_pause_their_handler(
    database_url: str, release: threading.Event
) -> None:
    inbox = Inbox()
    started: list[str] = []

    @inbox.effect(timeout_seconds=0.05)
    def hang(name: str) -> None:
        started.append(name)
        release.wait(30)

    @inbox.on("order.placed")
    async def bill(event: Event[Any], effects: Effects) -> None:
        await effects.call(f"charge:{event.id}", hang, event.id)

    async with run_inbox(inbox, database_url, workers=2) as bench:
        for number in range(8):
            await bench.post("order.placed", event_id=f"evt_{number}")
        await asyncio.sleep(1.5)
        assert 2 <= len(started) <= 3
        release.set()
        await bench.wait_until_idle()
    assert len(started) == 8
