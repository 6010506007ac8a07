"""Handlers of batches in a worker: they get the backlog in few calls, and each event once."""

import asyncio
import threading
from typing import Any

import pytest

from onceward import Effects, Event, Inbox, PermanentError, SyncTransaction, Transaction
from onceward.model.jobs import FailureType, JobStatus
from support.processes import eventually_async
from tests.factories import ACT
from tests.inprocess import notes, receive_only, run_inbox

INSERT = "INSERT INTO notes (text) VALUES (:text)"


@pytest.fixture
def inbox() -> Inbox:
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS notes (text varchar(255))")

    return inbox


async def test_a_backlog_is_handled_in_few_calls(inbox: Inbox, database_url: str) -> None:
    calls: list[list[str]] = []

    @inbox.on_batch("metric.*", max_events=40)
    async def store(events: list[Event[Any]], tx: Transaction) -> None:
        calls.append([event.id for event in events])
        for event in events:
            await tx.execute(INSERT, {"text": event.id})

    ids = [f"evt_{number:03}" for number in range(100)]
    async with receive_only(inbox, database_url) as bench:
        for event_id in ids:
            await bench.post("metric.cpu", {}, event_id)
    async with run_inbox(inbox, database_url, workers=2) as bench:
        await bench.wait_until_idle()
    assert [event_id for call in calls for event_id in call] == ids
    assert [len(call) for call in calls] == [40, 40, 20]
    assert notes(database_url) == ids


async def test_a_poison_event_fails_alone_and_the_rest_succeed(
    inbox: Inbox, database_url: str
) -> None:
    calls: list[int] = []

    @inbox.on_batch("metric.*", max_attempts=2)
    def store(events: list[Event[Any]], tx: SyncTransaction) -> None:
        calls.append(len(events))
        for event in events:
            tx.execute(INSERT, {"text": event.id})
            if event.payload == "poison":
                raise ValueError("poison")

    async with receive_only(inbox, database_url) as bench:
        for number in range(20):
            await bench.post("metric.cpu", "poison" if number == 7 else 1, f"evt_{number}")
    async with run_inbox(inbox, database_url) as bench:
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    poison = jobs.pop("evt_7/store")
    assert (poison.status, poison.failure_type, poison.attempts) == (
        JobStatus.FAILED,
        FailureType.EXHAUSTED,
        2,
    )
    assert {(job.status, job.attempts) for job in jobs.values()} == {(JobStatus.DONE, 1)}
    assert calls[0] == 20
    assert sorted(calls[1:]) == [1] * 21  # each alone, and the retry of the bad one
    assert len(notes(database_url)) == 19


async def test_events_gather_while_a_call_runs(inbox: Inbox, database_url: str) -> None:
    calls: list[int] = []
    may_end = asyncio.Event()

    @inbox.on_batch("metric.*")
    async def store(events: list[Event[Any]], tx: Transaction) -> None:
        calls.append(len(events))
        await may_end.wait()

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("metric.cpu", {}, "first")
        await eventually_async(lambda: _is(calls == [1]), "the first call runs")
        for number in range(30):
            await bench.post("metric.cpu", {}, f"evt_{number}")
        may_end.set()
        await bench.wait_until_idle()
    assert calls[0] == 1
    assert len(calls) <= 4


async def _is(value: bool) -> bool:  # noqa: FBT001 - a condition
    return value


async def test_an_operator_can_cancel_one_event_of_a_running_call(
    inbox: Inbox, database_url: str
) -> None:
    calls: list[int] = []
    started = asyncio.Event()

    @inbox.on_batch("metric.*")
    async def store(events: list[Event[Any]], tx: Transaction) -> None:
        calls.append(len(events))
        started.set()
        if len(calls) == 1:
            await asyncio.Event().wait()
        for event in events:
            await tx.execute(INSERT, {"text": event.id})

    async with receive_only(inbox, database_url) as bench:
        for number in range(3):
            await bench.post("metric.cpu", {}, f"evt_{number}")
    async with run_inbox(inbox, database_url, lease_seconds=0.6) as bench:
        await started.wait()
        await bench.store.cancel(int((await bench.job("evt_1")).id), ACT)
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert jobs.pop("evt_1/store").status == JobStatus.CANCELLED
    assert {(job.status, job.attempts) for job in jobs.values()} == {(JobStatus.DONE, 1)}
    assert notes(database_url) == ["evt_0", "evt_2"]
    assert calls == [3, 2]


async def test_on_failed_runs_in_a_worker(inbox: Inbox, database_url: str) -> None:
    threads: list[str] = []

    def tell(event: Event[Any], tx: SyncTransaction, error: Exception) -> None:
        threads.append(threading.current_thread().name)
        tx.execute(INSERT, {"text": f"{event.id}: {error}"})

    @inbox.on("order.*", on_failed=tell)
    async def credit(event: Event[Any]) -> None:
        raise PermanentError("no such account")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("order.paid")
    assert (job.status, job.failure_type) == (JobStatus.FAILED, FailureType.PERMANENT)
    assert notes(database_url) == ["evt_1: no such account"]
    assert threads == ["onceward-handler"]


async def test_on_failed_runs_when_the_outcome_of_a_call_is_unknown(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.effect(timeout_seconds=0.05)
    async def send() -> None:
        await asyncio.Event().wait()

    async def tell(tx: Transaction, error: Exception) -> None:
        await tx.execute(INSERT, {"text": type(error).__name__})

    @inbox.on("order.*", on_failed=tell)
    async def notify(event: Event[Any], effects: Effects) -> None:
        await effects.call("mail", send)

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("order.paid")
    assert job.failure_type == FailureType.UNKNOWN_OUTCOME
    assert notes(database_url) == ["EffectUnknown"]
