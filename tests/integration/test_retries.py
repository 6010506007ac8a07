"""Retries in a running service: their delays, the rules, and the time of the next attempt."""

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import httpx
import pytest

from onceward import Event, Inbox, PermanentError, Retry
from onceward.model.admin import JobItem
from onceward.model.jobs import FailureType, JobStatus
from onceward.settings import Settings
from support.processes import eventually_async
from tests.inprocess import RunningInbox, run_inbox

FAILED, QUEUED = JobStatus.FAILED, JobStatus.QUEUED
DEFAULT_ATTEMPTS = Settings().max_attempts
FAST = Retry(0.05, 0.05)
SLOW = Retry(600, 600)


@pytest.fixture
def inbox() -> Inbox:
    """Return an inbox with a source that accepts requests from anyone."""
    inbox = Inbox()
    inbox.source(
        "shop", preset="hmac", unsigned=True, id="json:id", type="json:type", retry={KeyError: SLOW}
    )
    return inbox


async def wait_for_attempts(bench: RunningInbox, attempts: int, event_id: str = "evt_1") -> JobItem:
    """Wait until this many attempts of the only job have failed, and return the job."""

    async def have_failed() -> bool:
        return (await bench.job(event_id)).attempts >= attempts

    await eventually_async(have_failed, f"{attempts} attempts have failed")
    return await bench.job(event_id)


async def send_from_shop(bench: RunningInbox, event_id: str = "evt_1") -> None:
    transport = httpx.ASGITransport(app=bench.service.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        response = await http.post("/webhooks/shop", json={"id": event_id, "type": "a"})
    assert response.status_code == 202, response.text


def wait_seconds(job: JobItem) -> float:
    """Return the time from now to the next attempt."""
    return (job.available_at - datetime.now(UTC)) / timedelta(seconds=1)


async def test_a_refused_connection_is_retried_with_growing_delays_and_not_failed(
    inbox: Inbox, database_url: str
) -> None:
    times = []

    @inbox.on("a")
    async def mail() -> None:
        times.append(time.monotonic())
        raise ConnectionRefusedError("the mail API is down")

    settings = {"max_attempts": DEFAULT_ATTEMPTS, "poll_seconds": 30.0}
    async with run_inbox(inbox, database_url, **settings) as bench:
        await bench.post("a")
        job = await wait_for_attempts(bench, 6)
    assert (job.status, job.failure_type, job.finished_at) == (QUEUED, None, None)
    assert (job.max_attempts, job.last_error) == (
        DEFAULT_ATTEMPTS,
        "ConnectionRefusedError: the mail API is down",
    )
    delays = [later - earlier for earlier, later in pairwise(times[:6])]
    for delay, whole in zip(delays, (0.05, 0.1, 0.2, 0.4, 0.8), strict=True):
        assert whole / 2 <= delay < whole + 0.5


async def test_a_rule_with_a_short_delay_uses_up_the_attempts_quickly(
    inbox: Inbox, database_url: str
) -> None:
    times = []

    @inbox.on("a", max_attempts=8, retry={ConnectionError: FAST})
    async def mail() -> None:
        times.append(time.monotonic())
        raise ConnectionRefusedError

    async with run_inbox(inbox, database_url, retry_base_seconds=60.0) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.failure_type) == (FAILED, FailureType.EXHAUSTED)
    assert job.attempts == len(times) == 8
    assert all(later - earlier >= 0.045 for earlier, later in pairwise(times))


async def test_a_rule_of_none_fails_the_job_at_its_first_attempt(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.on("a", retry={ValueError: None})
    async def parse() -> None:
        raise UnicodeError("not a number")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.failure_type, job.attempts) == (FAILED, FailureType.PERMANENT, 1)
    assert job.last_error == "UnicodeError: not a number"


WAITS: dict[str, tuple[Exception, float]] = {
    "the rule of the source": (KeyError("no"), 600),
    "the rule of the handler": (ConnectionError("no"), 300),
    "the settings": (TypeError("no"), 60),
}


async def test_a_waiting_job_shows_when_its_next_attempt_is(
    inbox: Inbox, database_url: str, subtests: pytest.Subtests
) -> None:
    @inbox.on("a", source="shop", retry={ConnectionError: Retry(300, 300)})
    async def mail(event: Event[Any]) -> None:
        raise WAITS[event.id][0]

    settings = {"retry_base_seconds": 60.0, "retry_max_seconds": 60.0}
    async with run_inbox(inbox, database_url, **settings) as bench:
        for name, (_, seconds) in WAITS.items():
            with subtests.test(name):
                await send_from_shop(bench, name)
                job = await wait_for_attempts(bench, 1, name)
                assert job.status is QUEUED
                assert seconds * 0.9 - 10 <= wait_seconds(job) <= seconds


async def test_a_permanent_error_wins_over_the_rule_of_the_source(
    inbox: Inbox, database_url: str
) -> None:
    class NoSuchPlan(PermanentError, KeyError):
        pass

    @inbox.on("a", source="shop")
    async def mail() -> None:
        raise NoSuchPlan("no such plan")

    async with run_inbox(inbox, database_url) as bench:
        await send_from_shop(bench)
        await bench.wait_until_idle()
        job = await bench.job()
    assert (job.status, job.failure_type, job.attempts) == (FAILED, FailureType.PERMANENT, 1)
