"""A worker that loses a lease keeps the jobs that it holds under its other leases."""

import asyncio
from collections.abc import Sequence

import pytest

from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from onceward.work.batching import Held, Turn
from onceward.work.runner import JobRunner
from onceward.work.worker import Worker
from tests.factories import arrivals, record


class Blocking(JobRunner):
    """Handling in which every turn lasts until it is broken off."""

    def __init__(self) -> None:
        self.max_shared_transactions: list[Sequence[Held]] = []

    async def run_together(self, held: Sequence[Held]) -> Turn:
        self.max_shared_transactions.append(held)
        await asyncio.Event().wait()
        return Turn()


@pytest.mark.parametrize("has_begun", [True, False])
async def test_when_one_lease_is_lost_what_is_under_the_others_is_run_again(
    store: Store, *, has_begun: bool
) -> None:
    await record(store, *arrivals(4))
    handling = Blocking()
    worker = Worker(
        name="w",
        queue=store,
        runner=handling,
        handlers=["credit"],
        settings=Settings(workers=1),
        clock=SystemClock(),
    )
    leases = [(await worker._leases.claim(2, solo=False)).lease for _ in range(2)]
    kept, lost = [[(lease, job) for job in lease.jobs] for lease in leases if lease]
    await store.end_leases([lost[0][0].token])
    gone = await worker._leases.renew()
    worker._scheduler._batch_size.size = 8
    worker._scheduler.requeue([*kept, *lost])
    worker._start_runs()
    if has_begun:
        await asyncio.sleep(0)
    worker._cancel_lost(gone)
    await asyncio.sleep(0.05)
    expected = [[*kept, *lost], kept] if has_begun else [kept]
    assert handling.max_shared_transactions == expected
    worker.stop()
    for task in worker._tasks:
        task.cancel()
    await asyncio.sleep(0)
