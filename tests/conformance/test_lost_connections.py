"""PostgreSQL alone: a job whose connection is lost is not blamed, unless it ends it each time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from onceward.errors import RetryLater
from onceward.model.jobs import FailureType, HandlerEntry, Job, JobStatus, Route
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.work.definition.handlers import make_handler
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.runner import JobRunner
from onceward.work.running.transaction import Transaction
from onceward.work.settling.settlement import MAX_FREE_LOSSES, SettlementPolicy
from support.database import RawDatabase
from support.proxy import Mode, Proxy
from tests.factories import arrival, claim, job_item, make_outside_calls, opened, record

MAX_ATTEMPTS = 2
CREDIT = HandlerEntry("credit", MAX_ATTEMPTS, (Route("invoice.paid"),))
PID = "SELECT pg_backend_pid()"


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[Proxy]:
    with Proxy(postgres_url) as running:
        yield running


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[Store]:
    async with opened(proxy.url, handlers=[CREDIT]) as opened_store:
        yield opened_store


def make_runner(store: Store, function: Callable[..., Awaitable[object]]) -> JobRunner:
    return JobRunner(
        queue=store,
        handlers={"credit": make_handler(function, ["invoice.paid"], name="credit")},
        settlement_policy=SettlementPolicy(base_seconds=0.01, max_seconds=0.01, random=lambda: 0.0),
        clock=SystemClock(),
        failpoints=Failpoints(),
        abandoned_calls=AbandonedCalls({}, limit=1, clock=SystemClock()),
        outside_calls=make_outside_calls(store),
    )


async def run_next(store: Store, runner: JobRunner) -> Job:
    """Wait until the job is due, and run it."""
    async with asyncio.timeout(10):
        while (lease := (await claim(store)).lease) is None:  # noqa: ASYNC110 - its delay passes
            await asyncio.sleep(0.01)
    (job,) = lease.jobs
    await runner.run(lease.token, job)
    return job


@pytest.mark.parametrize("idle", [True, False], ids=["between statements", "in a statement"])
async def test_a_job_whose_connection_is_terminated_is_not_blamed(
    store: Store, postgres_url: str, *, idle: bool
) -> None:
    raw_db = RawDatabase(postgres_url)
    runs = 0

    async def credit(tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        pid = await tx.fetch_value(PID)
        if runs <= MAX_FREE_LOSSES:
            end = f"SELECT pg_terminate_backend({pid})"
            if idle:
                await asyncio.to_thread(raw_db.rows, end)
                await tx.execute("SELECT 1")
            else:
                killer = asyncio.get_running_loop().call_later(0.1, raw_db.rows, end)
                await tx.execute("SELECT pg_sleep(10)")
                killer.cancel()

    await record(store, arrival())
    runner = make_runner(store, credit)
    for _ in range(MAX_FREE_LOSSES):
        item = await job_item(store, (await run_next(store, runner)).id)
        assert (item.status, item.attempts) == (JobStatus.QUEUED, 0)
    item = await job_item(store, (await run_next(store, runner)).id)
    assert (item.status, item.attempts) == (JobStatus.DONE, 1)


async def test_a_commit_whose_response_is_lost_counts_no_attempt(
    store: Store, proxy: Proxy, postgres_url: str
) -> None:
    RawDatabase(postgres_url).rows("CREATE TABLE notes (id integer)")

    async def credit(tx: Transaction) -> None:
        await tx.execute("INSERT INTO notes VALUES (1)")
        proxy.lose(Mode.LOSE_REQUESTS, after=b"SET status = 'done'")

    await record(store, arrival())
    job = await run_next(store, make_runner(store, credit))
    proxy.lose(Mode.FORWARD)
    assert proxy.losses == 1
    item = await job_item(store, job.id)
    assert (item.status, item.attempts) == (JobStatus.QUEUED, 0)
    assert RawDatabase(postgres_url).count("notes") == 0


async def test_a_handler_that_ends_its_own_connection_each_time_is_counted(store: Store) -> None:
    runs = 0

    async def credit(tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await record(store, arrival())
    runner = make_runner(store, credit)
    for _ in range(MAX_FREE_LOSSES + MAX_ATTEMPTS):
        job = await run_next(store, runner)
    item = await job_item(store, job.id)
    assert (item.status, item.failure_type) == (JobStatus.FAILED, FailureType.EXHAUSTED)
    assert runs == MAX_FREE_LOSSES + MAX_ATTEMPTS


async def test_only_losses_in_a_row_are_counted(store: Store) -> None:
    """Another error between two outages shows that the handler does not end its connection."""
    losses = [True] * MAX_FREE_LOSSES

    async def credit(tx: Transaction) -> None:
        if ends.pop(0):
            await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        raise RetryLater(0.01, "the account is locked")

    ends = [*losses, False, *losses]
    await record(store, arrival())
    runner = make_runner(store, credit)
    while ends:
        job = await run_next(store, runner)
    item = await job_item(store, job.id)
    assert (item.status, item.attempts) == (JobStatus.QUEUED, 1)
