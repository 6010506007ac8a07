"""Background tasks go on after any error."""

import asyncio
import logging

import pytest

from onceward.errors import StoreUnavailable
from onceward.runtime import periodic
from support.processes import eventually_async


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (KeyError("handlers"), logging.ERROR, "test_periodic.py:"),
        (StoreUnavailable("no connection"), logging.WARNING, "no connection"),
        (asyncio.CancelledError(), logging.ERROR, "test_periodic.py:"),
    ],
)
async def test_a_task_that_fails_is_reported_and_repeated(
    error: BaseException, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def refresh() -> None:
        nonlocal runs
        runs += 1
        raise error

    async def has_run_again() -> bool:
        return runs > 2

    task = asyncio.create_task(periodic.repeat(refresh, 0.01))
    await eventually_async(has_run_again, "the task is repeated")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.records[0].levelno == level
    assert "background task 'refresh' failed; retrying in" in caplog.messages[0]
    assert text in caplog.messages[0]


async def test_a_task_with_a_long_interval_is_repeated_soon_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(periodic, "RETRY_SECONDS", 0.01)
    has_run_again = asyncio.Event()

    async def purge() -> None:
        if purges.pop():
            raise StoreUnavailable("no connection")
        has_run_again.set()

    purges = [False, True]
    task = asyncio.create_task(periodic.repeat(purge, 3600.0))
    await asyncio.wait_for(has_run_again.wait(), 10)
    task.cancel()


async def test_a_cancelled_repetition_ends_in_the_middle_of_its_task() -> None:
    has_started = asyncio.Event()

    async def refresh() -> None:
        if has_started.is_set():
            raise GeneratorExit("the repetition goes on")
        has_started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(periodic.repeat(refresh, 0.01))
    await has_started.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()
