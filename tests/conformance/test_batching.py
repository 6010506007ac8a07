"""The jobs of a batch share a transaction: all of them commit, or none does."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from itertools import product
from typing import Any, NoReturn

import psycopg
import pytest

from onceward import Effects, Event, PermanentError, SyncEffects, SyncTransaction, Transaction
from onceward.errors import TransactionMisuse
from onceward.model.jobs import JobStatus
from onceward.ports import Store
from onceward.runtime import timeouts
from onceward.runtime.clock import Clock, SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.work.claiming.leases import LeasedJob
from onceward.work.definition.functions import HandlerFunction
from onceward.work.definition.handlers import TransactionMode, make_handler
from onceward.work.running import batching
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.batching import COMMIT_AFTER_SECONDS, BatchOutcome
from onceward.work.running.runner import JobRunner
from onceward.work.settling.settlement import SettlementPolicy
from support.database import RawDatabase
from tests.factories import (
    EVERYTHING,
    FakeClock,
    arrivals,
    job_item,
    lease,
    make_outside_calls,
    opened,
    record,
    working,
)

TABLE = "CREATE TABLE probes (event varchar(255))"
INSERT = "INSERT INTO probes (event) VALUES (:event)"


@pytest.fixture
def probes(raw_db: RawDatabase, store: Store) -> RawDatabase:
    """Return the database, with a table of the user's in it."""
    raw_db.rows(TABLE)
    return raw_db


class NoFailure(SettlementPolicy):
    """A policy for tests in which no attempt is settled as failed."""

    def decide(self, error: BaseException, **_: object) -> NoReturn:
        pytest.fail(f"an attempt failed: {error}")


def make_runner(
    store: Store,
    function: HandlerFunction,
    transaction: TransactionMode = "shared",
    clock: Clock | None = None,
    **options: Any,
) -> JobRunner:
    """Return a runner. Its clock stands still by default: a busy machine must not fail a test."""
    options |= {"name": "credit", "transaction": transaction}
    handler = make_handler(function, ["invoice.paid"], **options)
    return JobRunner(
        queue=store,
        handlers={"credit": handler},
        settlement_policy=NoFailure(base_seconds=1, max_seconds=1, random=lambda: 0.0),
        clock=clock or FakeClock(),
        failpoints=Failpoints(),
        abandoned_calls=AbandonedCalls({"credit": handler}, limit=1, clock=FakeClock()),
        outside_calls=make_outside_calls(store),
    )


async def probe(event: Event[Any], tx: Transaction) -> None:
    await tx.execute(INSERT, {"event": event.id})


async def claim_jobs(store: Store, count: int = 5, prefix: str = "evt") -> list[LeasedJob]:
    """Record events evt_0, evt_1, … and lease their jobs."""
    await record(store, *arrivals(count, prefix=prefix))
    return await lease_jobs(store, limit=count)


async def lease_jobs(store: Store, *, limit: int) -> list[LeasedJob]:
    claimed = await lease(store, limit=limit)
    return [LeasedJob(claimed, job) for job in claimed.jobs]


async def run_batch(
    store: Store,
    jobs: Sequence[LeasedJob],
    function: HandlerFunction = probe,
    clock: Clock | None = None,
) -> BatchOutcome:
    ended = await make_runner(store, function, clock=clock).run_batch(jobs)
    return outcome(ended.settled, ended.retry_alone, ended.remaining)


def outcome(
    settled: Sequence[LeasedJob] = (),
    retry_alone: Sequence[LeasedJob] = (),
    remaining: Sequence[LeasedJob] = (),
) -> BatchOutcome:
    """Return an outcome that compares by its jobs, whether in a list or in a tuple."""
    return BatchOutcome(list(settled), list(retry_alone), list(remaining))


async def statuses(store: Store, jobs: Sequence[LeasedJob]) -> list[tuple[str, int]]:
    items = [await job_item(store, job.id) for _, job in jobs]
    return [(item.status, item.attempts) for item in items]


async def assert_rolled_back(store: Store, probes: RawDatabase, jobs: list[LeasedJob]) -> None:
    assert probes.rows("SELECT event FROM probes") == []
    assert await statuses(store, jobs) == [(JobStatus.IN_PROGRESS, 0)] * len(jobs)


# What commits.


async def test_all_jobs_of_a_batch_commit(store: Store, probes: RawDatabase) -> None:
    jobs = await claim_jobs(store)
    assert await run_batch(store, jobs) == outcome(settled=jobs)
    assert Counter(probes.rows("SELECT event FROM probes")) == {
        (f"evt_{number}",): 1 for number in range(5)
    }
    assert await statuses(store, jobs) == [(JobStatus.DONE, 1)] * 5


async def test_a_batch_is_one_transaction(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        raw_db = RawDatabase(postgres_url)
        raw_db.rows(TABLE)
        await run_batch(store, await claim_jobs(store))
        assert raw_db.value("SELECT count(DISTINCT xmin::text) FROM probes") == 1


async def test_a_batch_settles_jobs_of_several_leases(store: Store, probes: RawDatabase) -> None:
    await record(store, *arrivals(4))
    jobs = [*await lease_jobs(store, limit=3), *await lease_jobs(store, limit=3)]
    assert await run_batch(store, jobs) == outcome(settled=jobs)
    assert await statuses(store, jobs) == [(JobStatus.DONE, 1)] * 4


async def test_jobs_that_write_nothing_are_settled(store: Store) -> None:
    async def do_nothing(event: Event[Any], tx: Transaction) -> None:
        assert event.id

    jobs = await claim_jobs(store)
    assert await run_batch(store, jobs, do_nothing) == outcome(settled=jobs)
    assert await statuses(store, jobs) == [(JobStatus.DONE, 1)] * 5


async def test_sync_handlers_share_a_transaction(store: Store, probes: RawDatabase) -> None:
    def insert(event: Event[Any], tx: SyncTransaction, effects: SyncEffects) -> None:
        assert effects.once(f"insert:{event.id}")
        tx.execute(INSERT, {"event": event.id})

    jobs = await claim_jobs(store)
    assert await run_batch(store, jobs, insert) == outcome(settled=jobs)
    assert probes.value("SELECT count(*) FROM probes") == len(await store.effects(EVERYTHING)) == 5


async def test_a_slow_batch_commits_the_jobs_that_it_has_run(
    store: Store, probes: RawDatabase
) -> None:
    clock = FakeClock()

    async def take_long(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.id == "evt_1":
            clock.seconds += 2 * COMMIT_AFTER_SECONDS

    jobs = await claim_jobs(store)
    expected = outcome(settled=jobs[:2], remaining=jobs[2:])
    assert await run_batch(store, jobs, take_long, clock) == expected
    assert probes.value("SELECT count(*) FROM probes") == 2


# What rolls back.


async def test_a_failure_rolls_back_the_batch_and_its_job_runs_alone(
    store: Store, probes: RawDatabase
) -> None:
    async def fail_at_the_third(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.id == "evt_2":
            raise PermanentError("no such account")

    jobs = await claim_jobs(store)
    first, second, third, fourth, fifth = jobs
    expected = outcome(retry_alone=[third], remaining=[first, second, fourth, fifth])
    assert await run_batch(store, jobs, fail_at_the_third) == expected
    await assert_rolled_back(store, probes, jobs)


async def test_a_swallowed_database_error_rolls_back_the_batch(
    store: Store, probes: RawDatabase
) -> None:
    async def swallow(event: Event[Any], tx: Transaction) -> None:
        await probe(event, tx)
        if event.id == "evt_1":
            with pytest.raises(Exception, match="no_such_table"):
                await tx.execute("SELECT * FROM no_such_table")

    jobs = await claim_jobs(store)
    assert (await run_batch(store, jobs, swallow)).retry_alone == [jobs[1]]
    await assert_rolled_back(store, probes, jobs)


async def test_a_batch_that_lost_its_lease_commits_nothing(
    store: Store, probes: RawDatabase
) -> None:
    jobs = await claim_jobs(store)
    await store.end_leases([jobs[0].lease.token])
    assert await run_batch(store, jobs) == outcome(retry_alone=jobs)
    assert probes.rows("SELECT event FROM probes") == []


async def test_a_batch_that_wrote_nothing_and_lost_its_lease_settles_nothing(store: Store) -> None:
    async def write_nothing(tx: Transaction) -> None:
        pass

    jobs = await claim_jobs(store)
    await store.end_leases([jobs[0].lease.token])
    assert await run_batch(store, jobs, write_nothing) == outcome(retry_alone=jobs)


async def test_a_batch_that_lost_one_of_two_leases_commits_nothing(
    store: Store, probes: RawDatabase
) -> None:
    await record(store, *arrivals(4))
    jobs = [*await lease_jobs(store, limit=3), *await lease_jobs(store, limit=3)]
    await store.end_leases([jobs[-1].lease.token])
    assert await run_batch(store, jobs) == outcome(retry_alone=jobs)
    assert probes.rows("SELECT event FROM probes") == []


async def test_a_batch_with_a_released_job_commits_nothing(
    store: Store, probes: RawDatabase
) -> None:
    jobs = await claim_jobs(store)
    await store.release(jobs[3].lease.token, [jobs[3].job.id])
    assert await run_batch(store, jobs) == outcome(retry_alone=jobs)
    assert probes.rows("SELECT event FROM probes") == []


async def test_after_a_failed_commit_every_job_runs_alone(postgres_url: str) -> None:
    async def violate_a_deferred_constraint(event: Event[Any], tx: Transaction) -> None:
        await tx.execute("INSERT INTO lines VALUES (1)")

    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE orders (id int PRIMARY KEY)")
    raw_db.rows("CREATE TABLE lines (id int REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
    async with opened(postgres_url) as store:
        jobs = await claim_jobs(store)
        expected = outcome(retry_alone=jobs)
        assert await run_batch(store, jobs, violate_a_deferred_constraint) == expected


async def test_after_a_failed_commit_the_jobs_that_did_not_run_remain(
    store: Store, probes: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "COMMIT_AFTER_SECONDS", -1.0)  # after the first job
    jobs = await claim_jobs(store)
    await store.end_leases([jobs[0].lease.token])
    expected = outcome(retry_alone=jobs[:1], remaining=jobs[1:])
    assert await run_batch(store, jobs) == expected


# Handlers that do not end in time.


async def test_a_handler_that_exceeds_the_shared_timeout_runs_alone(
    store: Store, probes: RawDatabase
) -> None:
    async def sleep(event: Event[Any], tx: Transaction) -> None:
        if event.id == "evt_0":
            await asyncio.sleep(5)

    jobs = await claim_jobs(store)
    assert (await run_batch(store, jobs, sleep, SystemClock())).retry_alone == [jobs[0]]
    await assert_rolled_back(store, probes, jobs)


async def test_a_handler_that_ignores_its_cancellation_writes_nothing_more(
    store: Store, probes: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "GRACE_SECONDS", 0.1)
    ended = asyncio.Event()
    refusals = []

    async def ignore_cancellation(event: Event[Any], tx: Transaction) -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.4)
        try:
            await probe(event, tx)
        except TransactionMisuse as error:
            refusals.append(error)
        ended.set()

    jobs = await claim_jobs(store)
    result = await run_batch(store, jobs, ignore_cancellation, SystemClock())
    assert result.retry_alone == [jobs[0]]
    await asyncio.wait_for(ended.wait(), 5)
    assert len(refusals) == 1
    await assert_rolled_back(store, probes, jobs)


async def test_a_handler_that_raises_a_cancellation_itself_runs_alone(store: Store) -> None:
    async def cancel(event: Event[Any], tx: Transaction) -> None:
        raise asyncio.CancelledError

    jobs = await claim_jobs(store)
    assert (await run_batch(store, jobs, cancel)).retry_alone == [jobs[0]]


async def test_a_handler_can_catch_its_own_timeout(store: Store) -> None:
    async def catch_timeout(event: Event[Any], tx: Transaction) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        except TimeoutError:
            await tx.execute("SELECT 1")

    jobs = await claim_jobs(store, 2)
    assert await run_batch(store, jobs, catch_timeout) == outcome(settled=jobs)


# Handlers do not affect each other.


async def test_each_handler_has_its_own_context_variables(store: Store) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    values = []

    async def set_variable(event: Event[Any], tx: Transaction) -> None:
        values.append(variable.get())
        variable.set(event.id)
        await tx.execute("SELECT 1")
        values.append(variable.get())

    jobs = await claim_jobs(store, 2)
    assert await run_batch(store, jobs, set_variable) == outcome(settled=jobs)
    assert values == ["unset", "evt_0", "unset", "evt_1"]


async def test_a_task_that_outlives_its_handler_cannot_write(
    store: Store, probes: RawDatabase
) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def leave_a_task(event: Event[Any], tx: Transaction) -> None:
        async def write() -> None:
            await asyncio.sleep(0.05)
            await probe(event, tx)

        if event.id == "evt_0":
            tasks.append(asyncio.create_task(write()))

    await run_batch(store, await claim_jobs(store), leave_a_task)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert probes.rows("SELECT event FROM probes") == []


async def test_a_handler_whose_statement_outlives_its_job_runs_alone(
    postgres_url: str, subtests: pytest.Subtests
) -> None:
    statements = {
        "SET": "SET LOCAL statement_timeout = '1h'",
        "lock": "SELECT pg_advisory_xact_lock(1)",
        "set_config": "SELECT set_config('x.y', '1', true)",
        "table": "CREATE TEMP TABLE t (n int)",
    }

    async def change_the_session(event: Event[Any], tx: Transaction) -> None:
        await tx.fetch(statements[event.id.rpartition("_")[0]])

    async with opened(postgres_url) as store:
        for name in statements:
            with subtests.test(name):
                jobs = await claim_jobs(store, prefix=name)
                assert (await run_batch(store, jobs, change_the_session)).retry_alone == [jobs[0]]


async def test_a_handler_that_has_to_wait_for_a_lock_runs_alone(postgres_url: str) -> None:
    async def update(event: Event[Any], tx: Transaction) -> None:
        await tx.execute("UPDATE accounts SET balance = balance + 1")

    RawDatabase(postgres_url).rows("CREATE TABLE accounts AS SELECT 0 AS balance")
    with psycopg.connect(postgres_url) as other:
        other.execute("UPDATE accounts SET balance = 5")
        async with opened(postgres_url) as store, asyncio.timeout(5):
            jobs = await claim_jobs(store)
            assert (await run_batch(store, jobs, update)).retry_alone == [jobs[0]]


# Which jobs share.


async def test_a_shared_handler_shares_once_it_is_known_to_be_quick(
    store: Store, probes: RawDatabase
) -> None:
    *first, last = await claim_jobs(store, 4)
    runner = make_runner(store, probe)
    assert not runner.may_share(last.job)
    for leased in first:
        await runner.run(leased.lease.token, leased.job)
    assert runner.may_share(last.job)


async def mark(event: Event[Any], tx: Transaction, effects: Effects) -> None:
    """Write a row for the first event under each key: evt_0, evt_2 and evt_4 have the same key."""
    if await effects.once(f"credit:{int(event.id[-1]) % 2}", reference=event.id):
        await probe(event, tx)


async def test_only_the_declaration_of_a_handler_decides_whether_it_shares(
    store: Store, probes: RawDatabase, subtests: pytest.Subtests
) -> None:
    modes: tuple[TransactionMode, ...] = ("own", "shared")
    for function, transaction in product((probe, mark), modes):
        with subtests.test(case := f"{function.__name__}, {transaction}"):
            probes.rows("DELETE FROM onceward.effects")  # so that `mark` writes in each case
            *first, last = await claim_jobs(store, 4, prefix=case)
            runner = make_runner(store, function, transaction)
            for leased in first:
                await runner.run(leased.lease.token, leased.job)
            assert runner.may_share(last.job) is (transaction == "shared")


# Effects in a batch.


async def test_effects_commit_with_the_batch(store: Store, probes: RawDatabase) -> None:
    jobs = await claim_jobs(store)
    assert await run_batch(store, jobs, mark) == outcome(settled=jobs)
    effects = {effect.idempotency_key: effect for effect in await store.effects(EVERYTHING)}
    assert {key: effect.reference for key, effect in effects.items()} == {
        "credit:0": "evt_0",
        "credit:1": "evt_1",
    }
    assert effects["credit:0"].job_id == str(jobs[0].job.id)
    assert sorted(probes.rows("SELECT event FROM probes")) == [("evt_0",), ("evt_1",)]


async def test_effects_are_rolled_back_with_the_batch(store: Store, probes: RawDatabase) -> None:
    async def fail_at_the_last(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        await mark(event, tx, effects)
        if event.id == "evt_4":
            raise OSError("the bank is closed")

    *others, last = jobs = await claim_jobs(store)
    expected = outcome(retry_alone=[last], remaining=others)
    assert await run_batch(store, jobs, fail_at_the_last) == expected
    assert await store.effects(EVERYTHING) == []
    await assert_rolled_back(store, probes, jobs)
    assert await run_batch(store, others, fail_at_the_last) == outcome(settled=others)
    assert len(await store.effects(EVERYTHING)) == 2


async def test_a_handler_runs_alone_if_another_transaction_is_marking_its_effect(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, asyncio.timeout(5):
        RawDatabase(postgres_url).rows(TABLE)
        jobs = await claim_jobs(store)
        async with working(store) as work:
            assert await work.effects(99).once("credit:1")
            assert (await run_batch(store, jobs, mark)).retry_alone == [jobs[1]]
        assert await store.effects(EVERYTHING) == []


async def test_a_job_that_waits_with_the_only_write_transaction_open_leaves_its_batch(
    sqlite_url: str,
) -> None:
    calls: Counter[str] = Counter()

    async def credit(event: Event[Any], effects: Effects) -> None:
        await effects.once(event.key)
        if event.id == "evt_2":
            await asyncio.sleep(5)
        calls[event.id] += 1

    async with opened(sqlite_url) as store:
        jobs = await claim_jobs(store)
        ended = await run_batch(store, jobs, credit)
        assert ended == outcome(retry_alone=[jobs[2]], remaining=[*jobs[:2], *jobs[3:]])
        again = await run_batch(store, ended.remaining, credit)
        assert again == outcome(settled=ended.remaining)
    assert calls == {"evt_0": 2, "evt_1": 2, "evt_3": 1, "evt_4": 1}
