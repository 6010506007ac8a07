"""A worker that loses or cannot release jobs keeps the others, and every job runs again."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from onceward.errors import StoreUnavailable
from onceward.model.jobs import Claim, ClaimRequest, Job, Renewal
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from onceward.work import worker as worker_module
from onceward.work.claiming.leases import LeasedJob
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.batching import BatchOutcome
from onceward.work.running.runner import JobRunner
from onceward.work.worker import Worker
from support.database import RawDatabase
from tests.factories import arrivals, claim, opened, record


class BlockingRunner(JobRunner):
    """A runner whose batches last until they are cancelled."""

    def __init__(self) -> None:
        self.abandoned_calls = AbandonedCalls({}, limit=1, clock=SystemClock())
        self._handlers = {}
        self.batches: list[Sequence[LeasedJob]] = []

    def may_share(self, job: Job) -> bool:
        del job
        return True

    async def run_batch(self, jobs: Sequence[LeasedJob]) -> BatchOutcome:
        self.batches.append(jobs)
        await asyncio.Event().wait()
        return BatchOutcome()


def make_worker(store: Store, runner: BlockingRunner) -> Worker:
    return Worker(
        name="w",
        queue=store,
        registry=store,
        runner=runner,
        handlers=["credit"],
        settings=Settings(workers=1),
        clock=SystemClock(),
    )


@pytest.mark.parametrize("has_started", [True, False])
async def test_when_one_lease_is_lost_the_jobs_under_the_others_run_again(
    store: Store, *, has_started: bool
) -> None:
    await record(store, *arrivals(4))
    runner = BlockingRunner()
    worker = make_worker(store, runner)
    leases = [(await worker._leases.claim({"credit": 2}, 2, solo=False)).lease for _ in range(2)]
    valid, lost = [[LeasedJob(lease, job) for job in lease.jobs] for lease in leases if lease]
    await store.end_leases([lost[0].lease.token])
    revoked = await worker._leases.renew()
    worker._scheduler._batch_size.size = 8
    worker._scheduler.requeue([*valid, *lost])
    worker._start_runs()
    if has_started:
        await asyncio.sleep(0)
    worker._cancel_revoked(revoked)
    await asyncio.sleep(0.05)
    expected = [[*valid, *lost], valid] if has_started else [valid]
    assert runner.batches == expected
    worker.stop()
    for task in worker._tasks:
        task.cancel()
    await asyncio.sleep(0)


async def test_jobs_that_could_not_be_released_are_claimed_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record(store, *arrivals(2))
    worker = make_worker(store, BlockingRunner())
    lease = (await worker._leases.claim({"credit": 10}, 10, solo=False)).lease
    assert lease is not None

    async def refuse(*_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "release", refuse)
    await worker._release(LeasedJob(lease, job) for job in lease.jobs)
    assert (await claim(store)).lease is None
    again = (await worker._leases.claim({"credit": 10}, 10, solo=False)).lease
    assert again is not None
    assert again.jobs == lease.jobs


async def test_a_worker_listens_again_after_a_defect(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def announcements() -> AsyncGenerator[None, None]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("a defect")
        yield

    monkeypatch.setattr(store, "announcements", announcements)
    monkeypatch.setattr(worker_module, "_OUTAGE_PAUSE_SECONDS", 0.0)
    worker = make_worker(store, BlockingRunner())
    listening = asyncio.create_task(worker._listen())
    await asyncio.wait_for(worker._wake.wait(), 5)
    listening.cancel()
    assert "announcements cannot be received: RuntimeError: a defect" in caplog.text


async def test_a_lease_claimed_before_the_worker_has_a_number_gets_it_at_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url) as store:
        claim_now = store.claim
        await record(store, *arrivals(1))
        worker = make_worker(store, BlockingRunner())

        async def claim_slowly(request: ClaimRequest) -> Claim:
            claimed = await claim_now(request)
            worker._leases.owner = 7  # the session was opened meanwhile, and renewed nothing
            return claimed

        monkeypatch.setattr(store, "claim", claim_slowly)
        await worker._claim()
        assert RawDatabase(postgres_url).value("SELECT owner FROM onceward.leases") == 7
        worker.stop()
        for task in worker._tasks:
            task.cancel()
        await asyncio.sleep(0)


async def test_leases_name_no_number_after_a_defect_of_the_presence(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise others would take the worker for dead, although it lives."""
    await record(store, *arrivals(1))

    async def presence() -> AsyncGenerator[int, None]:
        yield 7
        raise RuntimeError("a defect")

    monkeypatch.setattr(store, "presence", presence)
    worker = make_worker(store, BlockingRunner())
    worker._leases.owner = 7
    await worker._leases.claim({"credit": 1}, 1, solo=False)
    renewed = asyncio.Event()
    renew = store.renew

    async def note_renewal(*arguments: Any, owner: int, **options: Any) -> Renewal:
        renewal = await renew(*arguments, owner=owner, **options)
        if not owner:
            renewed.set()
        return renewal

    monkeypatch.setattr(store, "renew", note_renewal)
    keeping = asyncio.create_task(worker._keep_presence())
    await asyncio.wait_for(renewed.wait(), 5)
    keeping.cancel()
