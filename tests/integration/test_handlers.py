"""Handlers at work: what they are given, and how each way to end is settled."""

import asyncio
import threading
import time
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from onceward import (
    Effects,
    Event,
    Inbox,
    PermanentError,
    RetryLater,
    SyncEffects,
    SyncTransaction,
    Transaction,
)
from onceward.model.jobs import FailureType, JobStatus
from support.database import RawDatabase
from tests.inprocess import run_inbox

DONE, FAILED, QUEUED = JobStatus.DONE, JobStatus.FAILED, JobStatus.QUEUED
INSERT = "INSERT INTO notes (text) VALUES (:text)"


class Invoice(msgspec.Struct):
    amount: int


@pytest.fixture
def inbox() -> Inbox:
    """An inbox with a table for handlers to write to."""
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS notes (text varchar(255))")

    return inbox


def notes(url: str) -> list[str]:
    return sorted(text for (text,) in RawDatabase(url).rows("SELECT text FROM notes"))


# What a handler is given.


async def test_a_handler_gets_what_it_names(inbox: Inbox, database_url: str) -> None:
    given: dict[str, dict[str, Any]] = {}

    @inbox.on("a")
    async def nothing() -> None:
        given["nothing"] = {}

    @inbox.on("a")
    async def only_the_event(event: Event[Any]) -> None:
        given["event"] = {"event": event}

    @inbox.on("a")
    async def everything(effects: Effects, tx: Transaction, event: Event[Any]) -> None:
        given["all"] = {"event": event, "tx": tx, "effects": effects}

    @inbox.on("a")
    def everything_in_a_thread(event: Event[Any], tx: Any, effects: Any, more: int = 7) -> None:
        given["sync"] = {"event": event, "tx": tx, "effects": effects, "more": more}

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("a", {"x": [1, None]}, "evt_ü")
        await bench.wait_until_idle()
        assert {job.status for job in (await bench.jobs()).values()} == {DONE}
    assert given.keys() == {"nothing", "event", "all", "sync"}
    event = given["event"]["event"]
    assert (event.id, event.key, event.type) == ("evt_ü", "ingest:evt_ü", "a")
    assert (event.source, event.reference) == ("ingest", None)
    assert event.payload == {"x": [1, None]}
    assert msgspec.json.decode(event.body)["payload"] == {"x": [1, None]}
    assert event.headers["content-type"] == "application/json"
    assert isinstance(given["all"]["tx"], Transaction)
    assert isinstance(given["all"]["effects"], Effects)
    assert isinstance(given["sync"]["tx"], SyncTransaction)
    assert isinstance(given["sync"]["effects"], SyncEffects)
    assert given["sync"]["more"] == 7


async def test_async_and_sync_handlers_write_in_one_transaction_with_their_job(
    inbox: Inbox, database_url: str
) -> None:
    threads = set()

    @inbox.on("a")
    async def in_the_loop(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        threads.add(threading.current_thread())
        assert await effects.once(f"loop:{event.id}")
        assert await tx.execute(INSERT, {"text": "loop"}) == 1
        assert await tx.fetch_value("SELECT count(*) FROM notes WHERE text = 'loop'") == 1
        assert await tx.fetch_one("SELECT text FROM notes WHERE text = 'none'") is None

    @inbox.on("a")
    def in_a_thread(event: Event[Any], tx: SyncTransaction, effects: SyncEffects) -> None:
        threads.add(threading.current_thread())
        assert effects.once(f"thread:{event.id}")
        assert tx.execute(INSERT, {"text": "thread"}) == 1
        assert tx.fetch("SELECT text FROM notes WHERE text = 'thread'") == [{"text": "thread"}]
        assert tx.fetch_value("SELECT count(*) FROM notes WHERE text = 'thread'") == 1

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("a")
        await bench.wait_until_idle()
        assert [job.last_error for job in (await bench.jobs()).values()] == [None, None]
        keys = {effect.idempotency_key for effect in await bench.effects()}
    assert keys == {"loop:evt_1", "thread:evt_1"}
    assert notes(database_url) == ["loop", "thread"]
    assert len(threads) == 2


async def test_a_model_validates_before_the_handler_starts(inbox: Inbox, database_url: str) -> None:
    amounts = []

    @inbox.on("paid")
    async def annotated(event: Event[Invoice]) -> None:
        amounts.append(event.payload.amount)

    @inbox.on("paid", model=Invoice)
    def passed(event: Event[Any]) -> None:
        amounts.append(event.payload.amount)

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("paid", {"amount": 5}, "good")
        await bench.post("paid", {"amount": "much"}, "bad")
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert amounts == [5, 5]
    assert (jobs["good/annotated"].status, jobs["good/passed"].status) == (DONE, DONE)
    for job in (jobs["bad/annotated"], jobs["bad/passed"]):
        assert (job.status, job.failure_type) == (FAILED, FailureType.PERMANENT)
        assert job.last_error == "Malformed payload: amount: expected int, got str"
        assert job.attempts == 1


# How an attempt can end.


async def test_a_permanent_error_fails_at_once(inbox: Inbox, database_url: str) -> None:
    @inbox.on("a")
    async def refuse(tx: Transaction, effects: Effects) -> None:
        await effects.once("a")
        await tx.execute(INSERT, {"text": "never"})
        raise PermanentError("no such customer")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
        assert await bench.effects() == []
    assert (job.status, job.failure_type, job.attempts) == (FAILED, FailureType.PERMANENT, 1)
    assert job.last_error == "no such customer"
    assert notes(database_url) == []


async def test_retry_later_is_honoured(inbox: Inbox, database_url: str) -> None:
    times = []

    @inbox.on("a")
    async def later() -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise RetryLater(0.5, "the bank sleeps")

    # Nobody announces that a retry is due, and the worker does not wait for its next look.
    async with run_inbox(inbox, database_url, poll_seconds=30.0) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.attempts) == (DONE, 2)
    assert 0.45 <= times[1] - times[0] < 1.5


async def test_waits_between_attempts_double_until_they_are_used_up(
    inbox: Inbox, database_url: str
) -> None:
    times = []

    @inbox.on("a", max_attempts=4)
    async def fail(tx: Transaction) -> None:
        times.append(time.monotonic())
        await tx.execute(INSERT, {"text": "never"})
        raise OSError("try again")

    async with run_inbox(inbox, database_url, retry_base_seconds=0.2, poll_seconds=30.0) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.failure_type) == (FAILED, FailureType.EXHAUSTED)
    assert (job.attempts, job.max_attempts, job.last_error) == (4, 4, "OSError: try again")
    waits = [later - earlier for earlier, later in pairwise(times)]
    for wait, whole in zip(waits, (0.2, 0.4, 0.8), strict=True):
        assert whole / 2 <= wait < whole + 0.5
    assert notes(database_url) == []
    errors = RawDatabase(database_url).rows(
        "SELECT number, error FROM onceward.attempts ORDER BY 1"
    )
    assert errors == [(number, "OSError: try again") for number in range(1, 5)]


async def test_a_handler_that_fails_never_repeats_another_of_the_same_event(
    inbox: Inbox, database_url: str
) -> None:
    runs = []

    @inbox.on("a")
    async def good(tx: Transaction) -> None:
        runs.append("good")
        await tx.execute(INSERT, {"text": "good"})

    @inbox.on("a")
    async def bad(tx: Transaction) -> None:
        runs.append("bad")
        await tx.execute(INSERT, {"text": "bad"})
        raise OSError

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("a")
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert (jobs["evt_1/good"].status, jobs["evt_1/good"].attempts) == (DONE, 1)
    assert (jobs["evt_1/bad"].status, jobs["evt_1/bad"].attempts) == (FAILED, 3)
    assert sorted(runs) == ["bad", "bad", "bad", "good"]
    assert notes(database_url) == ["good"]


async def test_errors_are_stored_without_secrets_and_addresses(
    inbox: Inbox, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
    inbox.source("stripe", secrets=[secret])

    @inbox.on("a", max_attempts=2)
    async def leak() -> None:
        raise ValueError(f"{secret} of ann@example.com at postgres://me:hunter2@db/x")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    kept = RawDatabase(database_url).rows("SELECT error FROM onceward.attempts")
    for text in (str(job.last_error), str(kept), caplog.text):
        assert "ValueError" in text or text is caplog.text
        for sensitive in (secret, secret[6:], "ann@example.com", "hunter2"):
            assert sensitive not in text


# What a handler may not do with its transaction.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("COMMIT", "COMMIT"),
        ("rollback", "ROLLBACK"),
        ("-- x\nBEGIN", "BEGIN"),
        ("SAVEPOINT s", "SAVEPOINT"),
        ("END;", "END"),
    ],
)
async def test_ending_the_transaction_is_refused_by_name(
    inbox: Inbox, database_url: str, text: str, name: str
) -> None:
    @inbox.on("a")
    async def meddle(tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": "never"})
        await tx.execute(text)

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.failure_type) == (FAILED, FailureType.PERMANENT)
    assert str(job.last_error).startswith(f"{name} is not for handlers")
    assert notes(database_url) == []


async def test_two_statements_in_one_text_are_refused(inbox: Inbox, database_url: str) -> None:
    @inbox.on("a")
    async def meddle(tx: Transaction) -> None:
        await tx.execute("INSERT INTO notes (text) VALUES ('never'); COMMIT")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.failure_type) == (FAILED, FailureType.PERMANENT)
    assert notes(database_url) == []


async def test_a_database_error_cannot_be_swallowed(inbox: Inbox, database_url: str) -> None:
    @inbox.on("a", max_attempts=2)
    async def swallow(tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": "never"})
        with suppress(Exception):  # as careless code does
            await tx.execute("INSERT INTO nowhere (text) VALUES ('x')")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.failure_type) == (FAILED, FailureType.EXHAUSTED)
    assert "nowhere" in str(job.last_error)
    assert notes(database_url) == []


async def test_the_second_of_two_effects_is_the_first_one_that_was_not_committed(
    inbox: Inbox, database_url: str
) -> None:
    firsts = []

    @inbox.on("a")
    async def mark(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        firsts.append(await effects.once("the one"))
        await tx.execute(INSERT, {"text": event.id})
        if len(firsts) == 1:
            raise OSError("after the mark")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
        await bench.post("a", None, "evt_2")
        await bench.wait_until_idle()
        assert len(await bench.effects()) == 1
    assert (job.status, job.attempts) == (DONE, 2)
    assert firsts == [True, True, False]  # the first was rolled back with the rest of its attempt


# Handlers that take too long.


async def test_a_handler_that_outlasts_its_time_is_counted_and_others_go_on(
    inbox: Inbox, database_url: str
) -> None:
    release = threading.Event()
    refused: list[BaseException] = []
    given_up = threading.Event()

    @inbox.on("slow", timeout_seconds=0.3, max_attempts=1)
    async def sleep() -> None:
        await asyncio.sleep(60)

    @inbox.on("slow", timeout_seconds=0.3, max_attempts=1)
    def spin(tx: SyncTransaction) -> None:
        while not release.is_set():
            time.sleep(0.005)
        try:
            tx.execute(INSERT, {"text": "too late"})
        except BaseException as error:
            refused.append(error)
            given_up.set()
            raise

    @inbox.on("quick")
    async def quick(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})

    async with run_inbox(inbox, database_url, workers=3) as bench:
        await bench.post("slow")
        for number in range(20):
            await bench.post("quick", None, f"q{number}")
        await bench.wait_until_idle()
        release.set()
        await asyncio.to_thread(given_up.wait, 10)
        jobs = await bench.jobs()
    for name in ("sleep", "spin"):
        job = jobs[f"evt_1/{name}"]
        assert (job.status, job.failure_type) == (FAILED, FailureType.EXHAUSTED)
        assert (job.attempts, job.last_error) == (1, f"{name} took longer than 0.3 s")
    assert [job.status for key, job in jobs.items() if key.startswith("q")] == [DONE] * 20
    assert len(notes(database_url)) == 20
    assert len(refused) == 1  # what a thread that was given up writes later goes nowhere


async def test_threads_that_are_given_up_in_a_statement_leave_no_connection_behind(
    inbox: Inbox, postgres_url: str
) -> None:
    @inbox.on("stuck", timeout_seconds=0.15, max_attempts=1)
    def stick(tx: SyncTransaction) -> None:
        tx.execute("SELECT pg_sleep(30)")

    @inbox.on("quick")
    async def quick(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})

    async with run_inbox(inbox, postgres_url, workers=1) as bench:
        for number in range(5):  # more than the pool has connections
            await bench.post("stuck", None, f"s{number}")
        await bench.post("quick", None, "q")
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert jobs["q/quick"].status is DONE
    stuck = [job for key, job in jobs.items() if key.startswith("s")]
    assert {job.last_error for job in stuck} == {"stick took longer than 0.15 s"}


async def test_a_slow_handler_on_sqlite_holds_up_nobody(inbox: Inbox, sqlite_url: str) -> None:
    @inbox.on("waits")
    async def wait_first(event: Event[Any], tx: Transaction) -> None:
        await asyncio.sleep(2)
        await tx.execute(INSERT, {"text": event.id})

    @inbox.on("holds", max_attempts=1)
    async def hold(tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": "never"})
        await asyncio.sleep(2)

    async with run_inbox(inbox, sqlite_url) as bench:
        await bench.post("waits", None, "waits")
        await bench.post("holds", None, "holds")
        slowest = 0.0
        deadline = time.monotonic() + 1.0
        number = 0
        while time.monotonic() < deadline:
            begun = time.monotonic()
            number += 1
            await bench.post("nobody's", None, f"evt_{number}")
            slowest = max(slowest, time.monotonic() - begun)
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert slowest < 1.0
    assert jobs["waits/wait_first"].status is DONE
    held = jobs["holds/hold"]
    assert (held.status, held.failure_type) == (FAILED, FailureType.EXHAUSTED)
    assert "test_handlers.py" in str(held.last_error)  # it names the place that waits
    assert notes(sqlite_url) == ["waits"]


async def test_handlers_that_deadlock_are_run_again_and_their_effects_happen_once(
    inbox: Inbox, postgres_url: str
) -> None:
    both_hold_one = asyncio.Barrier(2)

    @inbox.on("transfer")
    async def transfer(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        await effects.once(f"transfer:{event.id}")
        first, second = event.payload
        await tx.execute("UPDATE notes SET text = text || '.' WHERE text LIKE :x", {"x": first})
        if not both_hold_one.broken:
            await both_hold_one.wait()
            await both_hold_one.abort()  # only the first time
        await tx.execute("UPDATE notes SET text = text || '.' WHERE text LIKE :x", {"x": second})

    async with run_inbox(inbox, postgres_url) as bench:
        RawDatabase(postgres_url).rows("INSERT INTO notes (text) VALUES ('a'), ('b')")
        await bench.post("transfer", ["a%", "b%"], "evt_1")
        await bench.post("transfer", ["b%", "a%"], "evt_2")
        await bench.wait_until_idle()
        jobs = [await bench.job("evt_1"), await bench.job("evt_2")]
        assert len(await bench.effects()) == 2
    assert [job.status for job in jobs] == [DONE, DONE]
    assert sorted(job.attempts for job in jobs) == [1, 2]
    assert notes(postgres_url) == ["a..", "b.."]
