"""Handlers in a running service: their arguments, and how their attempts are settled."""

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
from tests.inprocess import notes, run_inbox

DONE, FAILED, QUEUED = JobStatus.DONE, JobStatus.FAILED, JobStatus.QUEUED
INSERT = "INSERT INTO notes (text) VALUES (:text)"


class Invoice(msgspec.Struct):
    amount: int


# Arguments.


async def test_a_handler_gets_the_arguments_that_it_names(inbox: Inbox, database_url: str) -> None:
    calls: dict[str, dict[str, Any]] = {}

    @inbox.on("a")
    async def no_arguments() -> None:
        calls["none"] = {}

    @inbox.on("a")
    async def only_the_event(event: Event[Any]) -> None:
        calls["event"] = {"event": event}

    @inbox.on("a")
    async def everything(effects: Effects, tx: Transaction, event: Event[Any]) -> None:
        calls["all"] = {"event": event, "tx": tx, "effects": effects}

    @inbox.on("a")
    def everything_in_a_thread(event: Event[Any], tx: Any, effects: Any, more: int = 7) -> None:
        calls["sync"] = {"event": event, "tx": tx, "effects": effects, "more": more}

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("a", {"x": [1, None]}, "evt_ü")
        await bench.wait_until_idle()
        assert {job.status for job in (await bench.jobs()).values()} == {DONE}
    assert calls.keys() == {"none", "event", "all", "sync"}
    event = calls["event"]["event"]
    assert (event.id, event.key, event.type) == ("evt_ü", "ingest:evt_ü", "a")
    assert (event.source, event.reference) == ("ingest", None)
    assert event.payload == {"x": [1, None]}
    assert msgspec.json.decode(event.body)["payload"] == {"x": [1, None]}
    assert event.headers["content-type"] == "application/json"
    assert isinstance(calls["all"]["tx"], Transaction)
    assert isinstance(calls["all"]["effects"], Effects)
    assert isinstance(calls["sync"]["tx"], SyncTransaction)
    assert isinstance(calls["sync"]["effects"], SyncEffects)
    assert calls["sync"]["more"] == 7


async def test_async_and_sync_handlers_write_in_the_transaction_of_their_job(
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
        assert effects.once(f"thread:{event.id}", reference="order 7")
        note = {"text": "thread"}
        assert tx.execute(INSERT, note) == 1
        assert tx.fetch("SELECT text FROM notes WHERE text = :text", note) == [note]
        assert tx.fetch_one("SELECT text FROM notes WHERE text = :text", note) == note
        assert tx.fetch_value("SELECT count(*) FROM notes WHERE text = :text", note) == 1

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("a")
        await bench.wait_until_idle()
        jobs = await bench.jobs()
        effects = {effect.idempotency_key: effect for effect in await bench.effects()}
    assert [job.last_error for job in jobs.values()] == [None, None]
    assert effects.keys() == {"loop:evt_1", "thread:evt_1"}
    assert effects["loop:evt_1"].job_id == jobs["evt_1/in_the_loop"].id
    in_thread = effects["thread:evt_1"]
    assert (in_thread.job_id, in_thread.reference) == (jobs["evt_1/in_a_thread"].id, "order 7")
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


# How an attempt ends.


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
            raise RetryLater(0.5, "the bank is closed")

    # Retries are not announced, and the next poll is too late: the worker waits for the due time.
    async with run_inbox(inbox, database_url, poll_seconds=30.0) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.attempts) == (DONE, 2)
    assert 0.45 <= times[1] - times[0] < 1.5


async def test_the_delay_doubles_until_the_attempts_are_used_up(
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
    delays = [later - earlier for earlier, later in pairwise(times)]
    for delay, maximum in zip(delays, (0.2, 0.4, 0.8), strict=True):
        assert maximum / 2 <= delay < maximum + 0.5
    assert notes(database_url) == []
    errors = RawDatabase(database_url).rows(
        "SELECT number, error FROM onceward.attempts ORDER BY 1"
    )
    assert errors == [(number, "OSError: try again") for number in range(1, 5)]


async def test_a_failed_handler_does_not_repeat_another_handler_of_the_event(
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
    stored = RawDatabase(database_url).rows("SELECT error FROM onceward.attempts")
    for text in (str(job.last_error), str(stored), caplog.text):
        assert "ValueError" in text or text is caplog.text
        for sensitive in (secret, secret[6:], "ann@example.com", "hunter2"):
            assert sensitive not in text


# Misuse of the transaction.


ENDING = {
    "COMMIT": "COMMIT",
    "rollback": "ROLLBACK",
    "-- x\nBEGIN": "BEGIN",
    "SAVEPOINT s": "SAVEPOINT",
    "END;": "END",
    "DEALLOCATE ALL": "DEALLOCATE",
}


async def test_a_statement_that_would_end_the_transaction_is_refused_and_named(
    inbox: Inbox, database_url: str, subtests: pytest.Subtests
) -> None:
    @inbox.on("a")
    async def misuse(event: Event[str], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": "never"})
        await tx.execute(event.payload)

    async with run_inbox(inbox, database_url) as bench:
        for number, (text, name) in enumerate(ENDING.items()):
            with subtests.test(text):
                await bench.post("a", text, f"evt_{number}")
                await bench.wait_until_idle()
                job = await bench.job(f"evt_{number}")
                assert (job.status, job.failure_type) == (FAILED, FailureType.PERMANENT)
                assert f" in misuse: {name} is not for handlers" in str(job.last_error)
                assert notes(database_url) == []


async def test_two_statements_in_one_text_are_refused(inbox: Inbox, database_url: str) -> None:
    @inbox.on("a")
    async def misuse(tx: Transaction) -> None:
        await tx.execute("INSERT INTO notes (text) VALUES ('never'); COMMIT")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.failure_type) == (FAILED, FailureType.PERMANENT)
    assert notes(database_url) == []


async def test_a_name_of_other_drivers_is_explained_with_the_line(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.on("a")
    async def end(tx: Any) -> None:
        await tx.execute(INSERT, {"text": "never"})
        await tx.commit()

    @inbox.on("a")
    def end_in_a_thread(tx: Any) -> None:
        tx.execute(INSERT, {"text": "never"})
        tx.rollback()

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("a")
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    for function, reason in (
        (end, "there is no tx.commit; the transaction commits when the handler returns"),
        (end_in_a_thread, "there is no tx.rollback; raise an error to roll back"),
    ):
        job = jobs[f"evt_1/{function.__name__}"]
        line = function.__code__.co_firstlineno + 3
        assert (
            job.last_error
            == f"tests/integration/test_handlers.py:{line} in {function.__name__}: {reason}"
        )
        assert job.failure_type is FailureType.PERMANENT
    assert notes(database_url) == []


async def test_a_database_error_cannot_be_swallowed(inbox: Inbox, database_url: str) -> None:
    @inbox.on("a", max_attempts=2)
    async def swallow(tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": "never"})
        with suppress(Exception):  # the mistake
            await tx.execute("INSERT INTO nowhere (text) VALUES ('x')")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    assert (job.status, job.failure_type) == (FAILED, FailureType.EXHAUSTED)
    assert "nowhere" in str(job.last_error)
    assert notes(database_url) == []


async def test_an_effect_is_marked_again_after_a_rollback_and_once_after_a_commit(
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
    assert firsts == [True, True, False]  # the first mark was rolled back with its attempt


# Slow handlers.


async def test_a_timeout_counts_as_an_attempt_and_other_handlers_continue(
    inbox: Inbox, database_url: str
) -> None:
    release = threading.Event()
    refused: list[BaseException] = []
    was_refused = threading.Event()

    @inbox.on("slow", timeout_seconds=0.3, max_attempts=1)
    async def sleep() -> None:
        await asyncio.sleep(60)

    @inbox.on("slow", timeout_seconds=0.3, max_attempts=1)
    def spin(tx: SyncTransaction) -> None:
        while not release.is_set():
            time.sleep(0.005)  # the test releases the thread
        try:
            tx.execute(INSERT, {"text": "too late"})
        except BaseException as error:
            refused.append(error)
            was_refused.set()
            raise

    @inbox.on("quick", transaction="shared")
    async def quick(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})

    async with run_inbox(inbox, database_url, workers=3) as bench:
        await bench.post("slow")
        for number in range(20):
            await bench.post("quick", None, f"q{number}")
        await bench.wait_until_idle()
        release.set()
        await asyncio.to_thread(was_refused.wait, 10)
        jobs = await bench.jobs()
    for name in ("sleep", "spin"):
        job = jobs[f"evt_1/{name}"]
        assert (job.status, job.failure_type) == (FAILED, FailureType.EXHAUSTED)
        assert (job.attempts, job.last_error) == (1, f"{name} took longer than 0.3 s")
    assert [job.status for key, job in jobs.items() if key.startswith("q")] == [DONE] * 20
    assert len(notes(database_url)) == 20
    assert len(refused) == 1  # a thread cannot write after its timeout


async def test_a_timeout_in_a_statement_of_a_thread_returns_the_connection(
    inbox: Inbox, postgres_url: str
) -> None:
    @inbox.on("stuck", timeout_seconds=0.15, max_attempts=1)
    def stick(tx: SyncTransaction) -> None:
        tx.execute("SELECT pg_sleep(30)")

    @inbox.on("quick", transaction="shared")
    async def quick(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": event.id})

    async with run_inbox(inbox, postgres_url, workers=1) as bench:
        for number in range(5):  # more than the connections of the pool
            await bench.post("stuck", None, f"s{number}")
        await bench.post("quick", None, "q")
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert jobs["q/quick"].status is DONE
    stuck = [job for key, job in jobs.items() if key.startswith("s")]
    assert {job.last_error for job in stuck} == {"stick took longer than 0.15 s"}


async def test_a_slow_handler_on_sqlite_does_not_block_receiving(
    inbox: Inbox, sqlite_url: str
) -> None:
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
            started = time.monotonic()
            number += 1
            await bench.post("unhandled", None, f"evt_{number}")
            slowest = max(slowest, time.monotonic() - started)
        await bench.wait_until_idle()
        jobs = await bench.jobs()
    assert slowest < 1.0
    assert jobs["waits/wait_first"].status is DONE
    job = jobs["holds/hold"]
    assert (job.status, job.failure_type) == (FAILED, FailureType.EXHAUSTED)
    assert "test_handlers.py" in str(job.last_error), "the error names the line that waits"
    assert notes(sqlite_url) == ["waits"]


async def test_a_handler_that_blocks_the_event_loop_is_named_in_a_warning(
    inbox: Inbox, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @inbox.on("a")
    async def send_mail() -> None:
        time.sleep(0.3)  # noqa: ASYNC251 - longer than BLOCKED_SECONDS, the mistake under test

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("a")
    line = send_mail.__code__.co_firstlineno
    assert job.status is DONE
    assert (
        f"handler 'send_mail' (tests/integration/test_handlers.py:{line}) blocked the event loop"
        in caplog.text
    )


async def test_a_deadlock_is_retried_and_effects_happen_once(
    inbox: Inbox, postgres_url: str
) -> None:
    both_have_a_lock = asyncio.Barrier(2)

    @inbox.on("transfer")
    async def transfer(event: Event[Any], tx: Transaction, effects: Effects) -> None:
        await effects.once(f"transfer:{event.id}")
        first, second = event.payload
        await tx.execute("UPDATE notes SET text = text || '.' WHERE text LIKE :x", {"x": first})
        if not both_have_a_lock.broken:
            await both_have_a_lock.wait()
            await both_have_a_lock.abort()  # deadlock only once
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
