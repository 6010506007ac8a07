"""Outside effects in handlers: in order, once, and never done while an outcome is unknown."""

import asyncio
import itertools
import threading
import time
from typing import Any

import pytest

from onceward import (
    Applied,
    EffectNotApplied,
    Effects,
    Event,
    Inbox,
    NotApplied,
    PermanentError,
    SyncEffects,
    SyncTransaction,
    Transaction,
)
from onceward.model.admin import JobItem
from onceward.model.effects import EffectStatus
from onceward.model.jobs import FailureType, JobStatus
from support.database import RawDatabase
from support.processes import eventually_async
from tests.inprocess import run_inbox
from tests.outside import pass_deadline

KEY = "charge:1"
NOTES = "CREATE TABLE notes (text text)"
NOTE = "INSERT INTO notes VALUES (:text)"


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def failure(job: JobItem) -> tuple[JobStatus, FailureType | None]:
    return job.status, job.failure_type


async def test_a_handler_calls_then_writes(inbox: Inbox, database_url: str) -> None:
    @inbox.effect()
    async def charge(amount: int, *, idempotency_key: str) -> dict[str, Any]:
        return {"key": idempotency_key, "amount": amount}

    @inbox.on("order.placed")
    async def bill(event: Event[Any], effects: Effects, tx: Transaction) -> None:
        receipt = await effects.call(f"charge:{event.payload['order']}", charge, amount=5)
        await tx.execute(NOTE, {"text": f"{receipt['key']} {receipt['amount']}"})

    async with run_inbox(inbox, database_url) as bench:
        RawDatabase(database_url).rows(NOTES)
        assert (await bench.run_event("order.placed", {"order": 1})).status == "done"
        (effect,) = await bench.effects()
    assert (effect.status, effect.function, effect.job_id) == ("succeeded", "charge", "1")
    assert RawDatabase(database_url).rows("SELECT text FROM notes") == [("charge:1 5",)]


async def test_a_sync_handler_has_the_same(inbox: Inbox, database_url: str) -> None:
    def charge(amount: int) -> int:
        return amount + 1

    async def mail(text: str) -> str:
        return text.upper()

    @inbox.on("order.placed")
    def bill(effects: SyncEffects, tx: SyncTransaction) -> None:
        number = effects.call("charge:1", charge, 5)
        text = effects.call("mail:1", mail, "sent")
        tx.execute(NOTE, {"text": f"{number} {text}"})

    async with run_inbox(inbox, database_url) as bench:
        RawDatabase(database_url).rows(NOTES)
        assert (await bench.run_event("order.placed")).status == "done"
    assert RawDatabase(database_url).rows("SELECT text FROM notes") == [("6 SENT",)]


async def test_a_retry_resumes_at_the_first_unfinished_effect(
    inbox: Inbox, database_url: str
) -> None:
    calls = []

    async def first() -> str:
        calls.append("first")
        return "one"

    async def second() -> str:
        calls.append("second")
        if calls.count("second") == 1:
            raise EffectNotApplied("busy")
        return "two"

    @inbox.on("order.placed")
    async def bill(effects: Effects, tx: Transaction) -> None:
        results = [await effects.call("1", first), await effects.call("2", second)]
        await tx.execute(NOTE, {"text": " ".join(results)})
        if calls.count("end") == 0:
            calls.append("end")
            raise RuntimeError("after both calls")

    async with run_inbox(inbox, database_url) as bench:
        RawDatabase(database_url).rows(NOTES)
        assert (await bench.run_event("order.placed")).status == "done"
    assert calls == ["first", "second", "second", "end"]
    assert RawDatabase(database_url).rows("SELECT text FROM notes") == [("one two",)]


async def lose() -> None:
    raise ConnectionResetError("lost")


async def test_a_job_is_not_done_while_an_outcome_is_unknown(
    inbox: Inbox, database_url: str, subtests: pytest.Subtests
) -> None:
    @inbox.on("order.placed")
    async def bill(event: Event[Any], effects: Effects, tx: Transaction) -> None:
        try:
            await effects.call(event.id, lose)
        except Exception:
            if event.id == "raises another":
                raise PermanentError("declined") from None
            if event.id == "raises":
                raise
        await tx.execute(NOTE, {"text": "billed"})

    async with run_inbox(inbox, database_url) as bench:
        RawDatabase(database_url).rows(NOTES)
        for name in ("raises", "swallows", "raises another"):
            with subtests.test(name):
                await bench.post("order.placed", event_id=name)
                await bench.wait_until_idle()
                job = await bench.job(name)
                assert failure(job) == ("failed", "unknown_outcome")
                assert job.attempts == 1
                lost = "nobody knows whether lose was applied: ConnectionResetError: lost"
                assert lost in str(job.last_error)
                assert RawDatabase(database_url).count("notes") == 0


async def test_a_call_that_the_handler_leaves_behind_keeps_the_job_from_being_done(
    inbox: Inbox, database_url: str
) -> None:
    tasks = []

    async def hang() -> None:
        await asyncio.sleep(30)

    @inbox.on("order.placed")
    async def bill(effects: Effects) -> None:
        tasks.append(asyncio.ensure_future(effects.call(KEY, hang)))
        await asyncio.sleep(0.2)

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("order.placed")
        for task in tasks:
            task.cancel()
    assert failure(job) == ("failed", "unknown_outcome")


async def test_a_handler_that_times_out_in_a_call_leaves_it_unknown(
    inbox: Inbox, database_url: str
) -> None:
    async def hang() -> None:
        await asyncio.sleep(30)

    @inbox.on("order.placed", timeout_seconds=0.2)
    async def bill(effects: Effects) -> None:
        await effects.call(KEY, hang)

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("order.placed")

        async def is_unknown() -> bool:
            (effect,) = await bench.effects()
            return effect.status is EffectStatus.UNKNOWN

        await eventually_async(is_unknown, "the outcome is stored")
    assert failure(job) == ("failed", "unknown_outcome")


async def test_another_job_with_the_key_waits_without_losing_an_attempt(
    inbox: Inbox, database_url: str
) -> None:
    reached, answers = asyncio.Event(), asyncio.Event()

    @inbox.effect(timeout_seconds=1)
    async def charge() -> str:
        reached.set()
        await answers.wait()
        return "paid"

    @inbox.on("order.placed")
    async def bill(effects: Effects) -> None:
        assert await effects.call(KEY, charge) == "paid"

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("order.placed")
        await reached.wait()
        await bench.post("order.placed", event_id="evt_2")

        async def waits() -> bool:
            return "may be under way" in str((await bench.job("evt_2")).last_error)

        await eventually_async(waits, "the second job waits")
        assert (await bench.job("evt_2")).attempts == 0
        answers.set()
        await bench.wait_until_idle()
        assert [(await bench.job(f"evt_{n}")).attempts for n in (1, 2)] == [1, 1]


async def test_an_unknown_outcome_is_reconciled_by_the_next_attempt(
    inbox: Inbox, database_url: str
) -> None:
    answers = [NotApplied(), Applied("paid")]
    calls = []

    @inbox.effect(timeout_seconds=0.1, reconcile=lambda key: answers.pop(0))
    async def charge() -> None:
        calls.append(time.monotonic())
        raise ConnectionResetError("lost")

    @inbox.on("order.placed", max_attempts=5)
    async def bill(effects: Effects, tx: Transaction) -> None:
        await tx.execute(NOTE, {"text": await effects.call(KEY, charge)})

    async with run_inbox(inbox, database_url) as bench:
        RawDatabase(database_url).rows(NOTES)
        assert (await bench.run_event("order.placed")).status == "done"
    assert (len(calls), answers) == (2, [])
    assert RawDatabase(database_url).rows("SELECT text FROM notes") == [("paid",)]


async def test_a_policy_that_cannot_tell_ends_with_a_person(
    inbox: Inbox, database_url: str
) -> None:
    def ask(key: str) -> NotApplied:
        raise ConnectionError(key)

    @inbox.effect(timeout_seconds=0.05, reconcile=ask)
    async def charge() -> None:
        raise ConnectionResetError("lost")

    @inbox.on("order.placed", max_attempts=3)
    async def bill(effects: Effects) -> None:
        await effects.call(KEY, charge)

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("order.placed")
    assert (*failure(job), job.attempts) == ("failed", "unknown_outcome", 3)


AFTER_TX = "effects.call comes before the first statement of tx and before effects.once"


async def test_a_call_after_the_first_statement_is_refused(
    inbox: Inbox, database_url: str, subtests: pytest.Subtests
) -> None:
    @inbox.on("order.placed")
    async def bill(event: Event[Any], effects: Effects, tx: Transaction) -> None:
        first, swallows = event.payload
        if first == "once":
            await effects.once(f"mark:{event.id}")
        else:
            await tx.execute(NOTE, {"text": "billed"})
        try:
            await effects.call(f"charge:{event.id}", lose)
        except Exception:
            if not swallows:
                raise

    async with run_inbox(inbox, database_url) as bench:
        RawDatabase(database_url).rows(NOTES)
        for first, swallows in itertools.product(("statement", "once"), (False, True)):
            name = f"{first}, {swallows=}"
            with subtests.test(name):
                await bench.post("order.placed", [first, swallows], name)
                await bench.wait_until_idle()
                job = await bench.job(name)
                assert await bench.effects() == []
                assert failure(job) == ("failed", "permanent")
                assert AFTER_TX in str(job.last_error)
                assert "test_outside_effects.py" in str(job.last_error)
                assert RawDatabase(database_url).count("notes") == 0


async def test_a_statement_during_a_call_is_refused(inbox: Inbox, database_url: str) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.05)

    @inbox.on("order.placed")
    async def bill(effects: Effects, tx: Transaction) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(effects.call(KEY, slow))
            await asyncio.sleep(0)
            await tx.execute(NOTE, {"text": "billed"})

    async with run_inbox(inbox, database_url) as bench:
        RawDatabase(database_url).rows(NOTES)
        job = await bench.run_event("order.placed")
    assert job.status == "failed"
    assert "effects.call has not returned" in str(job.last_error)
    assert RawDatabase(database_url).count("notes") == 0


async def test_a_call_after_the_handler_has_returned_is_refused(
    inbox: Inbox, database_url: str
) -> None:
    tasks = []

    @inbox.on("order.placed")
    async def bill(effects: Effects) -> None:
        async def later() -> None:
            await asyncio.sleep(0.2)
            await effects.call(KEY, lose)

        tasks.append(asyncio.create_task(later()))

    async with run_inbox(inbox, database_url) as bench:
        assert (await bench.run_event("order.placed")).status == "done"
        (outcome,) = await asyncio.gather(*tasks, return_exceptions=True)
        assert "the handler has returned" in str(outcome)
        assert await bench.effects() == []


async def test_a_call_in_a_shared_transaction_is_refused(inbox: Inbox, database_url: str) -> None:
    @inbox.on("order.placed", transaction="shared")
    async def bill(effects: Effects) -> None:
        await effects.call(KEY, lose)

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("order.placed")
    assert failure(job) == ("failed", "permanent")
    assert 'remove transaction="shared"' in str(job.last_error)


async def test_a_forgotten_await_is_named(inbox: Inbox, database_url: str) -> None:
    @inbox.on("order.placed")
    async def bill(effects: Effects) -> None:
        effects.call(KEY, lose)  # type: ignore[unused-coroutine]

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("order.placed")
    assert "write `await effects.call(…)`" in str(job.last_error)


async def test_a_blocking_function_that_returns_late_is_the_truth(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.effect(timeout_seconds=0.1)
    def charge() -> str:
        time.sleep(0.4)  # blocks its thread, which cannot be stopped
        return "paid"

    @inbox.on("order.placed")
    async def bill(effects: Effects) -> None:
        await effects.call(KEY, charge)

    async with run_inbox(inbox, database_url) as bench:
        assert failure(await bench.run_event("order.placed")) == ("failed", "unknown_outcome")

        async def has_succeeded() -> bool:
            (effect,) = await bench.effects()
            return effect.status is EffectStatus.SUCCEEDED

        await eventually_async(has_succeeded, "the late result is stored")


@pytest.mark.parametrize("end", ["error", "coroutine"])
async def test_a_thread_that_fails_late_leaves_the_outcome_unknown(
    inbox: Inbox, database_url: str, end: str
) -> None:
    """A coroutine that nobody awaits has not called anything."""
    ended = threading.Event()

    @inbox.effect(timeout_seconds=0.05)
    def charge() -> Any:
        time.sleep(0.2)  # blocks its thread, which cannot be stopped
        ended.set()
        if end == "error":
            raise ValueError("late")
        return lose()

    @inbox.on("order.placed")
    async def bill(effects: Effects) -> None:
        await effects.call(KEY, charge)

    async with run_inbox(inbox, database_url) as bench:
        assert failure(await bench.run_event("order.placed")) == ("failed", "unknown_outcome")
        assert await asyncio.to_thread(ended.wait, 5)
        await asyncio.sleep(0.1)  # a success would be stored by now
        (effect,) = await bench.effects()
    assert effect.status is EffectStatus.UNKNOWN


async def test_the_next_job_of_a_key_waits_for_the_call_of_a_failed_one(
    inbox: Inbox, database_url: str
) -> None:
    """The other side may still apply the first call, after the second if that did not wait."""
    calls = []

    @inbox.effect(timeout_seconds=60)
    async def push(number: int) -> None:
        calls.append(number)
        if number == 1:
            raise ConnectionResetError("lost")

    @inbox.on("plan.*", ordering_key="plan", on_head_failed="continue")
    async def change(event: Event[Any], effects: Effects) -> None:
        number = event.payload["number"]
        await effects.call(f"push:{number}", push, number)

    async with run_inbox(inbox, database_url, poll_seconds=0.2) as bench:
        await bench.post("plan.changed", {"plan": "a", "number": 1})

        async def has_failed() -> bool:
            return (await bench.job()).status is JobStatus.FAILED

        await eventually_async(has_failed, "the first job has failed")
        await bench.post("plan.changed", {"plan": "a", "number": 2}, event_id="evt_2")
        await bench.post("plan.changed", {"plan": "b", "number": 3}, event_id="evt_3")

        async def others_are_done() -> bool:
            return (await bench.job("evt_3")).status is JobStatus.DONE

        await eventually_async(others_are_done, "the job of another key is done")
        waiting = await bench.job("evt_2")
        assert (waiting.status, calls) == (JobStatus.QUEUED, [1, 3])
        (_, first) = await bench.effects()
        assert waiting.available_at == first.deadline_at
        pass_deadline(RawDatabase(database_url))
        RawDatabase(database_url).make_due()

        async def second_is_done() -> bool:
            return (await bench.job("evt_2")).status is JobStatus.DONE

        await eventually_async(second_is_done, "the second job ran after the deadline")
    assert calls == [1, 3, 2]


WRONG_ANSWERS: dict[str, object] = {"True": True, "None": None, "NotApplied": NotApplied}


async def test_a_job_says_what_a_wrong_reconcile_returned(
    inbox: Inbox, database_url: str, subtests: pytest.Subtests
) -> None:
    @inbox.effect(timeout_seconds=0.1, reconcile=lambda key: WRONG_ANSWERS[key])
    async def charge() -> None:
        raise ConnectionResetError("lost")

    @inbox.on("order.placed", max_attempts=9)
    async def bill(event: Event[Any], effects: Effects) -> None:
        await effects.call(event.id, charge)

    async with run_inbox(inbox, database_url) as bench:
        for name in WRONG_ANSWERS:
            await bench.post("order.placed", event_id=name)
        await bench.wait_until_idle()
        jobs = {name: await bench.job(name) for name in WRONG_ANSWERS}
    for name, job in jobs.items():
        with subtests.test(name):
            assert failure(job) == ("failed", "unknown_outcome")
            assert job.attempts == 2
            assert "reconcile returned" in str(job.last_error)
            assert f"POST /admin/effects/{job.effect_id}/resolve" in str(job.last_error)


async def test_a_call_is_not_repeated_while_its_thread_runs_in_this_process(
    inbox: Inbox, database_url: str
) -> None:
    """A client without a timeout: the other side applies the call after the deadline."""
    applied, results = [], []

    @inbox.effect(
        timeout_seconds=0.2, reconcile=lambda key: Applied("found") if applied else NotApplied()
    )
    def charge() -> str:
        time.sleep(1)
        applied.append("charge")
        return "paid"

    @inbox.on("order.placed", max_attempts=9)
    async def bill(effects: Effects) -> None:
        results.append(await effects.call(KEY, charge))

    async with run_inbox(inbox, database_url) as bench:
        assert (await bench.run_event("order.placed")).status == "done"
        await asyncio.sleep(1.2)  # a second thread would end now
    assert applied == ["charge"]
    assert results in (["paid"], ["found"]), "the other attempts waited for the thread"
