"""A worker keeps neither jobs nor leases with which it can do nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from onceward.errors import NotSettled
from onceward.model.jobs import Job, Lease
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.settings import Settings
from onceward.work.claiming.leases import LeasedJob
from onceward.work.claiming.scheduler import ASK_INTERVAL_SECONDS
from onceward.work.definition.handlers import make_handler
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.batching import BatchOutcome
from onceward.work.running.runner import JobRunner
from onceward.work.worker import Worker
from support.database import RawDatabase
from tests.factories import arrival, arrivals, claim, lease, record


async def credit() -> None: ...


HANDLERS = {"credit": make_handler(credit, ["invoice.paid"])}


class StubRunner(JobRunner):
    """A runner whose jobs do not end, or raise an error."""

    def __init__(self, error: Exception | None = None, *, shares: bool = False) -> None:
        self.abandoned_calls = AbandonedCalls(HANDLERS, limit=1, clock=SystemClock())
        self._handlers = HANDLERS
        self._error = error
        self._shares = shares
        self.runs = 0

    def may_share(self, job: Job) -> bool:
        del job
        return self._shares

    async def run(self, token: str, job: Job) -> bool:
        del token, job
        self.runs += 1
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()
        return True

    async def run_batch(self, jobs: Sequence[LeasedJob]) -> BatchOutcome:
        await self.run(jobs[0].lease.token, jobs[0].job)
        return BatchOutcome()


def make_worker(store: Store, runner: StubRunner) -> Worker:
    return Worker(
        name="w",
        queue=store,
        registry=store,
        runner=runner,
        handlers=["credit"],
        settings=Settings(workers=1),
        clock=SystemClock(),
    )


async def end_runs(worker: Worker) -> None:
    worker.stop()
    tasks = list(worker._tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def working(
    store: Store, runner: StubRunner, jobs: int
) -> AsyncIterator[tuple[Worker, Lease]]:
    """Give jobs to a worker, under one lease, and let it start what it can."""
    await record(store, *arrivals(jobs))
    worker = make_worker(store, runner)
    worker._scheduler.complete_job("credit", 0.0)  # quick, so claimed ahead
    worker._scheduler._batch_size.size = jobs
    now = SystemClock().monotonic()
    plan = worker._scheduler.next_claim(now, without=(), freed=())
    assert plan is not None
    claimed = await worker._leases.claim(plan.wanted, plan.limit, solo=plan.solo)
    assert claimed.lease is not None
    worker._scheduler.add(plan, claimed, now)
    worker._start_runs()
    yield worker, claimed.lease
    await end_runs(worker)


def ids(leased: Lease) -> list[int]:
    return [job.id for job in leased.jobs]


async def test_a_lease_is_not_renewed_after_a_job_that_could_not_be_settled(
    store: Store,
) -> None:
    """The job waits until the lease expires. Those behind it are released, and wait for nothing."""
    runner = StubRunner(NotSettled("the row was altered"))
    async with working(store, runner, 3) as (worker, leased):
        await asyncio.wait(worker._tasks, timeout=5)
        assert runner.runs == 1
        assert not worker._leases.holds(leased)
    assert ids(await lease(store, worker="another")) == ids(leased)[1:]


async def test_a_lease_is_not_renewed_after_a_job_whose_task_was_cancelled(store: Store) -> None:
    """The job may still run, in a thread: it must not start again beside itself."""
    async with working(store, runner := StubRunner(), 3) as (worker, leased):
        await asyncio.sleep(0)  # the job starts
        (task,) = worker._tasks
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        await asyncio.sleep(0)  # its callback runs
        assert runner.runs == 1
        assert not worker._leases.holds(leased)
        assert ids(await lease(store, worker="another")) == ids(leased)[1:]


async def test_a_lease_is_not_renewed_after_a_batch_that_could_not_be_run(store: Store) -> None:
    runner = StubRunner(RuntimeError("a defect"), shares=True)
    async with working(store, runner, 3) as (worker, leased):
        await asyncio.wait(worker._tasks, timeout=5)
        await asyncio.sleep(0)  # its callback runs
        assert runner.runs == 1
        assert not worker._leases.holds(leased)


async def test_queued_jobs_of_a_handler_that_became_slow_are_released(store: Store) -> None:
    async with working(store, StubRunner(), 4) as (worker, leased):
        assert (await claim(store, worker="another")).lease is None
        worker._scheduler.complete_job("credit", 60.0)
        worker._start_runs()
        await asyncio.gather(*worker._releases)
        assert ids(await lease(store, worker="another")) == ids(leased)[1:]


async def test_queued_jobs_of_a_handler_that_hangs_are_released(store: Store) -> None:
    async with working(store, runner := StubRunner(), 4) as (worker, leased):
        runner.abandoned_calls.add("credit")
        worker._start_runs()
        await asyncio.gather(*worker._releases)
        assert ids(await lease(store, worker="another")) == ids(leased)[1:]


@pytest.mark.parametrize("shares", [True, False])
async def test_a_worker_that_stops_waits_for_jobs_that_it_gives_back(
    store: Store, *, shares: bool
) -> None:
    async with working(store, runner := StubRunner(shares=shares), 4) as (worker, _):
        runner.abandoned_calls.add("credit")
        worker._start_runs()
        worker.stop()
        for task in worker._tasks:
            task.cancel()
        await worker._drain()
        assert not worker._releases


async def test_a_worker_whose_slots_are_taken_asks_again_soon(store: Store) -> None:
    """A job that got stuck may let another one start before the next poll."""
    async with working(store, StubRunner(), 1) as (worker, _):
        worker._scheduler.complete_job("credit", 60.0)
        assert worker._settings.poll_seconds > ASK_INTERVAL_SECONDS
        assert await worker._claim() == ASK_INTERVAL_SECONDS


async def test_only_a_job_that_runs_alone_is_logged_as_such(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    for is_solo in (False, True):
        await record(store, arrival(f"solo-{is_solo}"))
        raw_db.rows(f"UPDATE onceward.jobs SET solo = {is_solo}")  # noqa: S608 - no outside data
        worker = make_worker(store, runner := StubRunner())
        await worker._claim()
        await asyncio.sleep(0)  # the job starts
        assert runner.runs == 1
        assert ("runs alone" in caplog.text) is is_solo
        await end_runs(worker)
