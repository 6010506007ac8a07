"""A forgotten ``await`` fails the job, commits nothing and is named with its line."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from onceward import Effects, Event, Inbox, RetryLater, SyncTransaction, Transaction
from onceward.errors import TransactionMisuse
from onceward.model.admin import JobItem
from onceward.model.jobs import FailureType, JobStatus
from onceward.work.definition.handlers import TransactionMode
from tests.inprocess import notes, run_inbox

DONE, FAILED = JobStatus.DONE, JobStatus.FAILED
INSERT = "INSERT INTO notes (text) VALUES (:text)"

Handler = Callable[..., Any]


def message(function: Handler, line: int, call: str) -> str:
    """Return the error for a call, so many lines below the first line of a function."""
    at = f"tests/integration/test_forgotten_await.py:{function.__code__.co_firstlineno + line}"
    return f"{at} in {function.__name__}: {call}(…) was not awaited; write `await {call}(…)`"


def unstarted(function: Handler) -> str:
    """Return the error for a function that returns a coroutine of `execute`."""
    at = f"tests/integration/test_forgotten_await.py:{function.__code__.co_firstlineno}"
    fault = "the handler returned the coroutine of execute() instead of running it"
    return f"{at}: {fault}; write await execute()"


def assert_permanent(job: JobItem, error: str) -> None:
    assert (job.status, job.failure_type, job.attempts) == (FAILED, FailureType.PERMANENT, 1)
    assert job.last_error == error


# The mistakes. Each handler writes first, so that a commit would show.


async def execute(event: Event[Any], tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": event.id})
    tx.execute(INSERT, {"text": "never"})  # type: ignore[unused-coroutine]


async def fetch(tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": "never"})
    for _ in tx.fetch("SELECT text FROM notes"):  # type: ignore[attr-defined]
        pass


async def fetch_one(tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": "never"})
    row: Any = tx.fetch_one("SELECT text FROM notes")
    raise RetryLater(1, row["text"])


async def fetch_value(tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": "never"})
    count: Any = tx.fetch_value("SELECT count(*) FROM notes")
    if count == 1:
        raise AssertionError


async def once(tx: Transaction, effects: Effects) -> None:
    if effects.once("the one"):  # type: ignore[truthy-bool]
        await tx.execute(INSERT, {"text": "never"})


async def helper(tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": "never"})
    tx.execute(INSERT, {"text": "never"})  # type: ignore[unused-coroutine]


async def nested(tx: Transaction) -> None:
    await helper(tx)


async def result(tx: Transaction) -> object:
    await tx.execute(INSERT, {"text": "never"})
    return tx.execute(INSERT, {"text": "never"})


FORGOTTEN: list[tuple[Handler, str]] = [
    (execute, message(execute, 2, "tx.execute")),
    (fetch, message(fetch, 2, "tx.fetch")),
    (fetch_one, message(fetch_one, 2, "tx.fetch_one")),
    (fetch_value, message(fetch_value, 2, "tx.fetch_value")),
    (once, message(once, 1, "effects.once")),
    (nested, message(helper, 2, "tx.execute")),
    (result, unstarted(result)),
]


async def test_a_call_that_is_not_awaited_fails_the_job_and_is_named(
    inbox: Inbox, database_url: str, subtests: pytest.Subtests
) -> None:
    for function, _ in FORGOTTEN:
        inbox.on(function.__name__)(function)
    async with run_inbox(inbox, database_url) as bench:
        for function, error in FORGOTTEN:
            name = function.__name__
            with subtests.test(name):
                await bench.post(name, event_id=name)
                await bench.wait_until_idle()
                assert_permanent(await bench.job(name), error)
        assert await bench.effects() == []
    assert notes(database_url) == []


async def test_only_the_job_that_did_not_await_fails_in_a_batch(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.on("a", transaction="shared")
    async def book(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})
        if event.payload % 7 == 0:
            tx.execute(INSERT, {"text": "never"})  # type: ignore[unused-coroutine]
        if event.payload % 14 == 0:
            raise KeyError

    async with run_inbox(inbox, database_url, workers=1) as bench:
        await asyncio.gather(*(bench.post("a", n, f"evt_{n:02}") for n in range(60)))
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    for number in range(60):
        job = jobs[f"evt_{number:02}/book"]
        if number % 7 == 0:
            assert_permanent(job, message(book, 4, "tx.execute"))
        else:
            assert (job.status, job.attempts) == (DONE, 1)
    assert notes(database_url) == [f"evt_{n:02}" for n in range(60) if n % 7]


async def test_the_inbox_does_not_start_if_at_start_did_not_await(database_url: str) -> None:
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        tx.execute("CREATE TABLE never (id integer)")  # type: ignore[unused-coroutine]

    service = inbox.service({"database_url": database_url}, dev=True)
    with pytest.raises(TransactionMisuse) as refused:
        await service.open()
    assert str(refused.value) == message(tables, 2, "tx.execute")


async def test_the_handlers_own_error_is_the_cause(database_url: str) -> None:
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        rows: Any = tx.fetch("SELECT 1")
        raise LookupError(rows)

    service = inbox.service({"database_url": database_url}, dev=True)
    with pytest.raises(TransactionMisuse) as refused:
        await service.open()
    assert isinstance(refused.value.__cause__, LookupError)


# What stays correct.


async def gathered(event: Event[Any], tx: Transaction) -> None:
    await asyncio.gather(*(tx.execute(INSERT, {"text": f"{event.id} {n}"}) for n in range(3)))


async def in_tasks(event: Event[Any], tx: Transaction) -> None:
    tasks = [asyncio.create_task(tx.execute(INSERT, {"text": f"{event.id} {n}"})) for n in range(3)]
    for task in tasks:
        await task


async def in_a_group(event: Event[Any], tx: Transaction) -> None:
    async with asyncio.TaskGroup() as group:
        for n in range(3):
            group.create_task(tx.execute(INSERT, {"text": f"{event.id} {n}"}))


async def awaited_later(event: Event[Any], tx: Transaction) -> None:
    for call in [tx.execute(INSERT, {"text": f"{event.id} {n}"}) for n in range(3)]:
        await call


async def in_a_timeout(event: Event[Any], tx: Transaction) -> None:
    for n in range(3):
        await asyncio.wait_for(tx.execute(INSERT, {"text": f"{event.id} {n}"}), 5.0)


def in_a_thread(event: Event[Any], tx: SyncTransaction) -> None:
    for n in range(3):
        tx.execute(INSERT, {"text": f"{event.id} {n}"})


AWAITED: list[Handler] = [gathered, in_tasks, in_a_group, awaited_later, in_a_timeout, in_a_thread]


async def test_a_call_that_is_awaited_in_another_way_is_no_mistake(
    inbox: Inbox, sqlite_url: str, subtests: pytest.Subtests
) -> None:
    modes: tuple[TransactionMode, ...] = ("own", "shared")
    cases = {
        f"{function.__name__}, {mode}": (function, mode) for function in AWAITED for mode in modes
    }
    for name, (function, mode) in cases.items():
        inbox.on(name, transaction=mode, name=name)(function)
    async with run_inbox(inbox, sqlite_url) as bench:
        for name in cases:
            with subtests.test(name):
                for number in range(5):  # enough runs to be quick, and to be shared
                    await bench.post(name, None, f"{name} {number}")
                await bench.wait_until_idle()
                jobs = [job for job in (await bench.jobs()).values() if job.handler == name]
                assert [(job.status, job.attempts) for job in jobs] == [(DONE, 1)] * 5
                noted = [note for note in notes(sqlite_url) if note.startswith(name)]
                assert noted == [f"{name} {number} {n}" for number in range(5) for n in range(3)]


async def test_a_failed_statement_is_retried_although_later_ones_were_not_reached(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.on("a", max_attempts=2)
    async def fail(tx: Transaction) -> None:
        for call in [tx.execute("INSERT INTO nowhere VALUES (1)") for _ in range(3)]:
            await call

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    assert (job.failure_type, job.attempts) == (FailureType.EXHAUSTED, 2)
    assert "nowhere" in str(job.last_error)


async def test_a_timeout_is_retried_although_a_call_was_not_reached(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.on("a", max_attempts=2, timeout_seconds=0.1)
    async def wait(tx: Transaction) -> None:
        call = tx.execute(INSERT, {"text": "never"})
        await asyncio.sleep(30)
        await call

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    assert (job.failure_type, job.last_error) == (
        FailureType.EXHAUSTED,
        "wait took longer than 0.1 s",
    )
