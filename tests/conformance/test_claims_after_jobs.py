"""A worker claims when a job ends only if the claim may find another one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from onceward import Event, Inbox, RetryLater
from onceward.errors import StoreUnavailable
from onceward.model.jobs import Claim, ClaimRequest
from onceward.work import worker as worker_module
from onceward.work.claiming import scheduler
from support.database import RawDatabase
from support.processes import eventually_async
from tests.conformance.test_stopping import handling
from tests.inprocess import RunningInbox, run_inbox

LONG_SECONDS = 60.0
LIMIT_SECONDS = 5.0


@pytest.fixture
def no_later_claims(monkeypatch: pytest.MonkeyPatch, no_polls: None) -> None:
    """Let no claim come by itself: a job that is missed is missed for long."""
    monkeypatch.setattr(worker_module, "_END_LEASES_SECONDS", LONG_SECONDS)


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "ASK_INTERVAL_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(scheduler, "STUCK_SECONDS", LONG_SECONDS)


@asynccontextmanager
async def counting_claims(
    url: str, **settings: Any
) -> AsyncIterator[tuple[RunningInbox, list[ClaimRequest]]]:
    """Run a worker with a quick handler, and note its claims."""
    inbox, requests = Inbox(), []

    @inbox.on("a")
    async def handle() -> None: ...

    async with run_inbox(inbox, url, poll_seconds=LONG_SECONDS, **settings) as bench:
        claim = bench.store.claim

        async def note(request: ClaimRequest) -> Claim:
            requests.append(request)
            return await claim(request)

        bench.store.claim = note  # type: ignore[method-assign] # the claims are counted
        yield bench, requests


@pytest.mark.usefixtures("no_later_claims")
async def test_no_claim_follows_a_job_if_none_was_left_behind(database_url: str) -> None:
    async with counting_claims(database_url) as (bench, requests):
        await bench.run_event("a")  # the first one may take any time
        await asyncio.sleep(0.2)
        requests.clear()
        for number in range(3):
            await bench.post("a", event_id=f"later_{number}")
            await bench.wait_until_idle()
            await asyncio.sleep(0.1)
        assert len(requests) == 3


async def test_a_job_that_may_run_with_others_is_not_said_to_run_alone(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with counting_claims(database_url) as (bench, _):
        await bench.run_event("a")
    assert "runs alone" not in caplog.text


@pytest.mark.parametrize(("interval", "looks"), [(LONG_SECONDS, 0), (0.0, 3)])
@pytest.mark.usefixtures("no_later_claims")
async def test_a_busy_worker_looks_for_lost_jobs_now_and_then(
    monkeypatch: pytest.MonkeyPatch, database_url: str, interval: float, looks: int
) -> None:
    monkeypatch.setattr(worker_module, "_LOOK_SECONDS", interval)
    async with counting_claims(database_url) as (bench, requests):
        await bench.run_event("a")
        await asyncio.sleep(0.2)
        requests.clear()
        for number in range(3):
            await bench.post("a", event_id=f"later_{number}")
            await bench.wait_until_idle()
            await asyncio.sleep(0.1)
        assert sum(request.looks_for_lost for request in requests) == looks


async def test_claims_in_quick_succession_do_not_put_off_the_look_for_lost_jobs(
    database_url: str,
) -> None:
    async with counting_claims(database_url) as (bench, requests):
        await bench.run_event("a")
        requests.clear()
        for number in range(12):
            await bench.post("a", event_id=f"later_{number}")
            await asyncio.sleep(0.1)
        assert 2 <= sum(request.looks_for_lost for request in requests) < len(requests)


@pytest.mark.usefixtures("no_later_claims")
async def test_a_failed_claim_has_not_looked_for_lost_jobs(
    monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setattr(worker_module, "_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(worker_module, "_OUTAGE_PAUSE_SECONDS", 0.02)
    async with counting_claims(database_url) as (bench, requests):
        await bench.run_event("a")
        await asyncio.sleep(0.6)
        requests.clear()
        counted = bench.store.claim

        async def fail_first(request: ClaimRequest) -> Claim:
            if not requests:
                requests.append(request)
                raise StoreUnavailable("away")
            return await counted(request)

        bench.store.claim = fail_first  # type: ignore[method-assign] # the first claim fails
        await bench.post("a", event_id="later")
        await bench.wait_until_idle()
        assert [request.looks_for_lost for request in requests[:2]] == [True, True]


@pytest.mark.usefixtures("no_polls")
async def test_the_lease_of_a_job_ends_soon_after_it(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with counting_claims(database_url) as (bench, _):
        await bench.run_event("a")
        await asyncio.sleep(0.3)  # the claims of the start are over
        await bench.post("a", event_id="later")
        await bench.wait_until_idle()

        async def has_ended() -> bool:
            return raw_db.count("onceward.leases") == 0

        await eventually_async(has_ended, "the lease has ended", LIMIT_SECONDS)


REASONS: Final[dict[str, dict[str, Any]]] = {
    "slot": {},
    "cap": {"concurrency": 1},
    "key": {"ordering_key": "key"},
    "retry": {},
}


@pytest.mark.usefixtures("no_later_claims")
async def test_a_job_that_another_one_kept_waiting_runs_at_once(
    database_url: str, subtests: pytest.Subtests
) -> None:
    failed = set[str]()

    async def handle(event: Event[Any]) -> None:
        if event.type == "retry" and event.id not in failed:
            failed.add(event.id)
            raise RetryLater(0.05)
        await asyncio.sleep(0.02)

    for reason, options in REASONS.items():
        inbox = Inbox()
        inbox.on(reason, name=reason, **options)(handle)
        settings = {"workers": 1 if reason == "slot" else 4, "poll_seconds": LONG_SECONDS}
        with subtests.test(reason):
            async with run_inbox(inbox, database_url, **settings) as bench:
                events = {f"{reason} {number}" for number in range(1 if reason == "retry" else 5)}
                for event in sorted(events):
                    await bench.post(reason, {"key": "k"}, event_id=event)
                async with asyncio.timeout(LIMIT_SECONDS):
                    await bench.wait_until_idle()
                jobs = [j for j in (await bench.jobs()).values() if j.external_event_id in events]
                assert [job.status for job in jobs] == ["done"] * len(events)


@pytest.mark.usefixtures("no_later_claims")
async def test_a_job_that_was_announced_while_enough_were_held_is_claimed_later(
    database_url: str,
) -> None:
    async with handling(database_url, 20) as running:
        await running.bench.post("a", event_id="later")
        await asyncio.sleep(0.2)  # its announcement arrives
        running.may_end.set()
        async with asyncio.timeout(LIMIT_SECONDS):
            await running.bench.wait_until_idle()
        await running.stop()
