"""A worker that loses a lease keeps the jobs that it holds under its other leases."""

import asyncio
from collections.abc import Sequence

import pytest

from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from onceward.work.abandoned_calls import AbandonedCalls
from onceward.work.batching import BatchOutcome
from onceward.work.leases import LeasedJob
from onceward.work.runner import JobRunner
from onceward.work.worker import Worker
from tests.factories import arrivals, record


class BlockingRunner(JobRunner):
    """A runner whose batches last until they are cancelled."""

    def __init__(self) -> None:
        self.abandoned_calls = AbandonedCalls({}, limit=1, clock=SystemClock())
        self.batches: list[Sequence[LeasedJob]] = []

    async def run_batch(self, jobs: Sequence[LeasedJob]) -> BatchOutcome:
        self.batches.append(jobs)
        await asyncio.Event().wait()
        return BatchOutcome()


@pytest.mark.parametrize("has_started", [True, False])
async def test_when_one_lease_is_lost_the_jobs_under_the_others_run_again(
    store: Store, *, has_started: bool
) -> None:
    await record(store, *arrivals(4))
    runner = BlockingRunner()
    worker = Worker(
        name="w",
        queue=store,
        registry=store,
        runner=runner,
        handlers=["credit"],
        settings=Settings(workers=1),
        clock=SystemClock(),
    )
    leases = [(await worker._leases.claim(2, solo=False)).lease for _ in range(2)]
    valid, lost = [[LeasedJob(lease, job) for job in lease.jobs] for lease in leases if lease]
    await store.end_leases([lost[0].lease.token])
    lost_tokens = await worker._leases.renew()
    worker._scheduler._batch_size.size = 8
    worker._scheduler.requeue([*valid, *lost])
    worker._start_runs()
    if has_started:
        await asyncio.sleep(0)
    worker._cancel_lost(lost_tokens)
    await asyncio.sleep(0.05)
    expected = [[*valid, *lost], valid] if has_started else [valid]
    assert runner.batches == expected
    worker.stop()
    for task in worker._tasks:
        task.cancel()
    await asyncio.sleep(0)
