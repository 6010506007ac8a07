"""A call with many events commits for all of them, or for none."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import msgspec
import pytest

from onceward import Event, PermanentError, SyncTransaction, Transaction
from onceward.errors import StoreUnavailable
from onceward.model.jobs import Job, JobStatus
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.store.sqlite.transaction import IDLE_SECONDS
from onceward.work.claiming.leases import LeasedJob
from onceward.work.definition.batches import make_batch_handler
from onceward.work.definition.functions import HandlerFunction
from onceward.work.running import event_batches
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.batching import BatchOutcome
from onceward.work.running.runner import JobRunner
from onceward.work.settling.settlement import SettlementPolicy
from support.database import RawDatabase
from tests.factories import (
    ACT,
    EVERYTHING,
    arrival,
    arrivals,
    job_item,
    lease,
    make_outside_calls,
    opened,
    record,
)

INSERT = "INSERT INTO probes (event) VALUES (:event)"


@pytest.fixture
def probes(raw_db: RawDatabase, store: Store) -> RawDatabase:
    """Return the database, with a table of the user's in it."""
    raw_db.rows("CREATE TABLE probes (event varchar(255))")
    return raw_db


async def insert(events: list[Event[Any]], tx: Transaction) -> None:
    for event in events:
        await tx.execute(INSERT, {"event": event.id})


def make_runner(store: Store, function: HandlerFunction = insert, **options: Any) -> JobRunner:
    handler = make_batch_handler(function, ["invoice.paid"], name="credit", **options)
    clock = SystemClock()
    return JobRunner(
        queue=store,
        handlers={"credit": handler},
        settlement_policy=SettlementPolicy(base_seconds=1, max_seconds=1, random=lambda: 0.0),
        clock=clock,
        failpoints=Failpoints(),
        abandoned_calls=AbandonedCalls({"credit": handler}, limit=9, clock=clock),
        outside_calls=make_outside_calls(store),
    )


async def leased_jobs(store: Store, *leases: int) -> list[LeasedJob]:
    """Record events evt_0, evt_1, … and lease their jobs, some under each lease."""
    await record(store, *arrivals(sum(leases)))
    claimed = [await lease(store, limit=count) for count in leases]
    return [LeasedJob(each, job) for each in claimed for job in each.jobs]


async def run(
    store: Store, jobs: Sequence[LeasedJob], function: HandlerFunction = insert, **options: Any
) -> BatchOutcome:
    ended = await make_runner(store, function, **options).run_events(jobs)
    groups = (ended.settled, ended.retry_alone, ended.remaining, ended.unusable)
    return BatchOutcome(*map(list, groups))


async def statuses(store: Store) -> set[tuple[str, int]]:
    return {(item.status, item.attempts) for item in await store.jobs(EVERYTHING)}


def rows(probes: RawDatabase) -> list[str]:
    return [event for (event,) in probes.rows("SELECT event FROM probes")]


async def test_one_call_gets_all_events_in_order_and_all_jobs_are_done(
    store: Store, probes: RawDatabase
) -> None:
    jobs = await leased_jobs(store, 3, 2)
    calls = []

    async def note(events: list[Event[Any]], tx: Transaction) -> None:
        calls.append([event.id for event in events])
        await insert(events, tx)

    assert await run(store, jobs, note) == BatchOutcome(jobs, [], [], [])
    assert calls == [[f"evt_{number}" for number in range(5)]]
    assert rows(probes) == calls[0]
    assert await statuses(store) == {(JobStatus.DONE, 1)}


async def test_a_sync_handler_gets_them_in_a_thread(store: Store, probes: RawDatabase) -> None:
    jobs = await leased_jobs(store, 3)

    def insert_all(events: list[Event[Any]], tx: SyncTransaction) -> None:
        for event in events:
            tx.execute(INSERT, {"event": event.id})

    assert await run(store, jobs, insert_all) == BatchOutcome(jobs, [], [], [])
    assert len(rows(probes)) == 3


async def test_a_call_without_a_statement_settles_all_jobs_at_once(store: Store) -> None:
    jobs = await leased_jobs(store, 2, 2)

    async def do_nothing(events: list[Event[Any]], tx: Transaction) -> None: ...

    assert await run(store, jobs, do_nothing) == BatchOutcome(jobs, [], [], [])
    assert await statuses(store) == {(JobStatus.DONE, 1)}


@pytest.mark.parametrize("writes", [True, False])
async def test_the_lost_lease_of_one_job_commits_nothing(
    store: Store, probes: RawDatabase, *, writes: bool
) -> None:
    jobs = await leased_jobs(store, 3, 2)
    cancelled = jobs[-1].job.id

    async def lose_one(events: list[Event[Any]], tx: Transaction) -> None:
        await store.cancel(cancelled, ACT)
        if writes:
            await insert(events, tx)

    assert await run(store, jobs, lose_one) == BatchOutcome([], jobs, [], [])
    assert rows(probes) == []
    assert await statuses(store) == {(JobStatus.IN_PROGRESS, 0), (JobStatus.CANCELLED, 0)}


async def test_an_error_commits_nothing_and_only_the_bad_event_fails_alone(
    store: Store, probes: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = await leased_jobs(store, 4)
    calls = []

    async def refuse_one(events: list[Event[Any]], tx: Transaction) -> None:
        calls.append(len(events))
        await insert(events, tx)
        if any(event.id == "evt_2" for event in events):
            raise PermanentError("no such account")

    runner = make_runner(store, refuse_one)
    ended = await runner.run_events(jobs)
    assert list(ended.retry_alone) == jobs
    assert rows(probes) == []
    assert await statuses(store) == {(JobStatus.IN_PROGRESS, 0)}
    assert "a call with 4 events committed nothing; each is tried alone: no such account" in (
        caplog.text
    )
    warning = next(each for each in caplog.records if "committed nothing" in each.message)
    assert vars(warning)["location"].endswith(" in refuse_one")
    assert warning.message.endswith(f"({vars(warning)['location']})")
    for each, job in ended.retry_alone:
        await runner.run(each.token, job)
    assert calls == [4, 1, 1, 1, 1]
    assert rows(probes) == ["evt_0", "evt_1", "evt_3"]
    items = {item.external_event_id: item for item in await store.jobs(EVERYTHING)}
    assert items.pop("evt_2").last_error == "no such account"
    assert {(item.status, item.attempts) for item in items.values()} == {(JobStatus.DONE, 1)}


async def test_a_statement_that_fails_commits_nothing(store: Store, probes: RawDatabase) -> None:
    jobs = await leased_jobs(store, 2)

    async def swallow(events: list[Event[Any]], tx: Transaction) -> None:
        await insert(events, tx)
        with contextlib.suppress(Exception):
            await tx.execute("INSERT INTO nowhere VALUES (1)")

    assert (await run(store, jobs, swallow)).retry_alone == jobs
    assert rows(probes) == []


async def test_a_timeout_commits_nothing_and_counts_no_attempt(
    store: Store, probes: RawDatabase
) -> None:
    jobs = await leased_jobs(store, 2)

    async def hang(events: list[Event[Any]], tx: Transaction) -> None:
        await asyncio.Event().wait()

    assert (await run(store, jobs, hang, timeout_seconds=0.05)).retry_alone == jobs
    assert await statuses(store) == {(JobStatus.IN_PROGRESS, 0)}


async def test_a_call_that_idles_in_the_only_write_transaction_is_cancelled(
    sqlite_url: str,
) -> None:
    later = []

    async def wait(events: list[Event[Any]], tx: Transaction) -> None:
        await tx.fetch("SELECT 1")
        await asyncio.sleep(IDLE_SECONDS + 0.25)
        later.append(events)

    async with opened(sqlite_url) as store:
        jobs = await leased_jobs(store, 2)
        assert await run(store, jobs, wait) == BatchOutcome([], jobs, [], [])
    assert later == []


async def test_a_sync_call_that_times_out_writes_nothing_later(
    store: Store, probes: RawDatabase
) -> None:
    jobs = await leased_jobs(store, 2)

    def sleep(events: list[Event[Any]], tx: SyncTransaction) -> None:
        time.sleep(0.2)  # beyond its timeout: a thread cannot be stopped
        tx.execute(INSERT, {"event": "late"})

    assert (await run(store, jobs, sleep, timeout_seconds=0.05)).retry_alone == jobs
    await asyncio.sleep(0.3)
    assert rows(probes) == []


class Invoice(msgspec.Struct):
    """A payload with a number."""

    amount: int


async def test_an_unusable_payload_does_not_take_the_others_down(
    store: Store, subtests: pytest.Subtests
) -> None:
    amounts: list[int] = []

    async def typed(events: list[Event[Invoice]], tx: Transaction) -> None:
        amounts.extend([event.payload.amount for event in events])

    async def plain(events, tx) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        await typed(events, tx)

    runners = {
        "annotated": make_runner(store, typed),
        "plain": make_runner(store, plain, model=Invoice),
    }
    for (name, runner), body in product(runners.items(), (b"{", b'{"amount": "much"}')):
        with subtests.test(case := f"{name}, {body!r}"):
            amounts.clear()
            good = [arrival(f"{case} {number}", body=b'{"amount": 5}') for number in range(3)]
            await record(store, *good[:1], arrival(f"{case} bad", body=body), *good[1:])
            claimed = await lease(store)
            jobs = [LeasedJob(claimed, job) for job in claimed.jobs]
            ended = await runner.run_events(jobs)
            assert list(ended.settled) == [jobs[0], *jobs[2:]]
            assert (list(ended.unusable), list(ended.retry_alone)) == ([jobs[1]], [])
            assert amounts == [5, 5, 5]
            await runner.run(jobs[1].lease.token, jobs[1].job)
            item = await job_item(store, jobs[1].job.id)
            end = (item.status, item.failure_type, item.attempts)
            assert end == (JobStatus.FAILED, "permanent", 1)


@pytest.mark.parametrize("wanted", [[], ["evt_1", "evt_2"]], ids=["none", "some"])
async def test_a_call_gets_the_events_that_the_filter_function_wants(
    store: Store, probes: RawDatabase, wanted: list[str]
) -> None:
    jobs = await leased_jobs(store, 4)
    runner = make_runner(store, when=lambda event: event.id in wanted)
    ended = await runner.run_events(jobs)
    assert rows(probes) == [job.event_id for _, job in ended.settled] == wanted
    assert (len(ended.unusable), list(ended.retry_alone)) == (4 - len(wanted), [])
    for each, job in ended.unusable:
        assert await runner.run(each.token, job)
        item = await job_item(store, job.id)
        assert (item.status, item.failure_type) == (JobStatus.IGNORED, "filtered")
    assert rows(probes) == wanted


async def test_a_body_that_is_not_json_is_handled_alone_without_a_model(
    store: Store, probes: RawDatabase
) -> None:
    await record(store, arrival("evt_0"), arrival("text", body=b"{"), arrival("evt_1"))
    claimed = await lease(store)
    jobs = [LeasedJob(claimed, job) for job in claimed.jobs]
    runner = make_runner(store)
    ended = await runner.run_events(jobs)
    assert (list(ended.settled), list(ended.unusable)) == ([jobs[0], jobs[2]], [jobs[1]])
    assert await runner.run(claimed.token, jobs[1].job)
    assert sorted(rows(probes)) == ["evt_0", "evt_1", "text"]


async def test_an_event_that_the_filter_rejects_is_not_in_the_call(
    store: Store, probes: RawDatabase
) -> None:
    jobs = await leased_jobs(store, 3)
    ended = await run(store, jobs, when=lambda event: event.id != "evt_1")
    assert ended == BatchOutcome([jobs[0], jobs[2]], [], [], [jobs[1]])
    assert rows(probes) == ["evt_0", "evt_2"]


async def test_no_call_is_made_if_the_filter_rejects_every_event(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = await leased_jobs(store, 2)
    assert await run(store, jobs, when=lambda event: False) == BatchOutcome([], [], [], jobs)
    assert caplog.records == []


async def test_a_batch_is_split_by_the_bytes_of_its_bodies(
    store: Store, probes: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'"' + b"x" * 100 + b'"'
    await record(store, *(arrival(f"evt_{number}", body=body) for number in range(5)))
    claimed = await lease(store)
    # Large bodies are not claimed with their jobs.
    jobs = [LeasedJob(claimed, job._replace(body=None)) for job in claimed.jobs]
    monkeypatch.setattr(event_batches, "MAX_BODY_BYTES", 2 * len(body))
    assert await run(store, jobs) == BatchOutcome(jobs[:2], [], jobs[2:], [])
    monkeypatch.setattr(event_batches, "MAX_BODY_BYTES", len(body) // 2)
    assert await run(store, jobs[2:]) == BatchOutcome(jobs[2:3], [], jobs[3:], [])
    assert rows(probes) == ["evt_0", "evt_1", "evt_2"]


async def test_a_store_that_is_away_blames_no_event(
    store: Store, probes: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [each._replace(job=each.job._replace(body=None)) for each in await leased_jobs(store, 2)]

    async def refuse(job: Job) -> bytes:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "load_body", refuse)
    assert (await run(store, jobs)).retry_alone == jobs
    assert await statuses(store) == {(JobStatus.IN_PROGRESS, 0)}


async def test_a_settlement_that_forgets_a_job_is_noticed(
    store: Store, probes: RawDatabase
) -> None:
    """The rows of a batch are those of its done jobs: what the tests above rely on."""
    jobs = await leased_jobs(store, 3)

    async def finish_one_elsewhere(events: list[Event[Any]], tx: Transaction) -> None:
        assert await store.settle_done(jobs[0].lease.token, jobs[0].job.id)
        await insert(events, tx)

    assert (await run(store, jobs, finish_one_elsewhere)).retry_alone == jobs
    assert rows(probes) == []
