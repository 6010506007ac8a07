"""A handler that waits with SQLite's only write transaction open ends at its `await`."""

import asyncio
import time
from typing import Any

import pytest

from onceward import Effects, Event, Inbox, PermanentError, SyncEffects, Transaction
from onceward.model.jobs import JobStatus
from onceward.runtime import timeouts
from onceward.store.sqlite.transaction import IDLE_SECONDS
from tests.inprocess import run_inbox

SLOW_SECONDS = IDLE_SECONDS + 0.25
ADVICE = (
    "waited over 250 ms with SQLite's only write transaction open; it was rolled back. "
    "Make slow calls before the first tx or effects call"
)


async def post_office() -> None:
    """Wait for as long as a slow mail server."""
    await asyncio.sleep(SLOW_SECONDS)


def line_of(function: Any, offset: int) -> str:
    line = function.__code__.co_firstlineno + offset
    return f"tests/integration/test_idle_transactions.py:{line}"


async def test_an_async_handler_is_cancelled_before_its_outside_call_completes(
    sqlite_url: str,
) -> None:
    inbox = Inbox(sqlite_url)
    mails: list[str] = []

    @inbox.on("order.shipped", max_attempts=2)
    async def send_mail(event: Event[Any], effects: Effects) -> None:
        if await effects.once(f"mail:{event.id}"):
            await post_office()
            mails.append(event.id)

    async with run_inbox(inbox, sqlite_url, retry_base_seconds=0.01) as bench:
        job = await bench.run_event("order.shipped")
        detail = await bench.store.job(int(job.id), attempts=1)
    assert mails == []
    assert (job.status, job.failure_type, job.attempts) == (JobStatus.FAILED, "exhausted", 2)
    assert job.last_error == f"{line_of(send_mail, 3)} in send_mail: {ADVICE}"
    assert detail is not None
    assert detail.failed_attempts[0].traceback.splitlines()[:2] == [
        f"{line_of(send_mail, 3)} in send_mail",
        f"{line_of(post_office, 2)} in post_office",
    ]


async def test_on_failed_is_cancelled_too(sqlite_url: str) -> None:
    inbox = Inbox(sqlite_url)
    mails: list[str] = []

    async def send_mail(event: Event[Any], tx: Transaction) -> None:
        await tx.fetch("SELECT 1")
        await post_office()
        mails.append(event.id)

    @inbox.on("order.shipped", on_failed=send_mail)
    async def refuse(event: Event[Any]) -> None:
        raise PermanentError("no such order")

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("order.shipped")
    assert mails == []
    line = f"{line_of(send_mail, 2)} in send_mail"
    assert job.last_error == f"no such order; on_failed raised {line}: {ADVICE}"


async def test_a_handler_that_ignores_its_cancellation_is_abandoned(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "GRACE_SECONDS", 0.1)
    inbox = Inbox(sqlite_url)
    end = time.monotonic() + 3

    @inbox.on("stubborn", max_attempts=1)
    async def stubborn(event: Event[Any], effects: Effects) -> None:
        await effects.once(f"mail:{event.id}")
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("stubborn")
    assert time.monotonic() < end
    assert ADVICE in (job.last_error or "")


async def test_a_handler_that_waits_before_its_first_statement_is_not_cancelled(
    sqlite_url: str,
) -> None:
    inbox = Inbox(sqlite_url)

    @inbox.on("order.shipped")
    async def send_mail(event: Event[Any], effects: Effects) -> None:
        await post_office()
        await effects.once(f"mail:{event.id}")
        await effects.once(f"receipt:{event.id}")

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("order.shipped")
    assert (job.status, job.attempts) == (JobStatus.DONE, 1)


async def test_a_sync_handler_runs_to_its_end_and_cannot_write_any_more(sqlite_url: str) -> None:
    inbox = Inbox(sqlite_url)
    ended: list[str] = []

    @inbox.on("order.shipped", max_attempts=1)
    def send_mail(event: Event[Any], effects: SyncEffects) -> None:
        effects.once(f"mail:{event.id}")
        time.sleep(SLOW_SECONDS)  # longer than a transaction may idle
        ended.append(event.id)
        effects.once(f"receipt:{event.id}")

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("order.shipped")
    assert ended == ["evt_1"]
    assert job.last_error == f"{line_of(send_mail, 3)} in send_mail: {ADVICE}"
