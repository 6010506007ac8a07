"""The function on_failed commits with the end of its job, once, and changes nothing else."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec
import psycopg
import pytest

from onceward import Event, PermanentError, RetryLater, SyncTransaction, Transaction
from onceward.errors import ConnectionLost, OutcomeUnknown, StoreUnavailable
from onceward.model.admin import JobItem
from onceward.model.jobs import (
    Fail,
    FailureType,
    HandlerEntry,
    JobStatus,
    Route,
)
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.sql_text import parse
from onceward.work.definition.batches import make_batch_handler
from onceward.work.definition.functions import HandlerFunction
from onceward.work.definition.handlers import Handler, make_handler
from onceward.work.running import giving_up
from onceward.work.running.abandoned_calls import AbandonedCalls
from onceward.work.running.runner import JobRunner
from onceward.work.settling.settlement import SettlementPolicy
from support.database import RawDatabase
from tests.factories import (
    ACT,
    arrival,
    job_item,
    lease,
    make_outside_calls,
    opened,
    record,
    working,
)

ENTRY = HandlerEntry("credit", 2, (Route("invoice.paid"),), has_on_failed=True)
INSERT = "INSERT INTO notes (text) VALUES (:text)"
SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with opened(database_url, handlers=[ENTRY]) as store:
        RawDatabase(database_url).rows("CREATE TABLE notes (text varchar(255))")
        yield store


def notes(raw_db: RawDatabase) -> list[str]:
    return [text for (text,) in raw_db.rows("SELECT text FROM notes")]


async def note(event: Event[Any], tx: Transaction, error: BaseException) -> None:
    await tx.execute(INSERT, {"text": f"{event.id}: {error}"})


async def refuse(event: Event[Any]) -> None:
    raise PermanentError("no such account")


def make_runner(
    store: Store,
    on_failed: HandlerFunction | None = note,
    function: HandlerFunction = refuse,
    **options: Any,
) -> JobRunner:
    handler = make_handler(
        function, ["invoice.paid"], name="credit", on_failed=on_failed, **options
    )
    return runner_of(store, handler)


def runner_of(store: Store, handler: Handler) -> JobRunner:
    clock = SystemClock()
    return JobRunner(
        queue=store,
        handlers={"credit": handler},
        settlement_policy=SettlementPolicy(
            base_seconds=0.0, max_seconds=0.0, random=lambda: 0.0, secrets=[SECRET]
        ),
        clock=clock,
        failpoints=Failpoints(),
        abandoned_calls=AbandonedCalls({"credit": handler}, limit=9, clock=clock),
        outside_calls=make_outside_calls(store),
    )


async def run_next(store: Store, runner: JobRunner, *, solo: bool = False) -> JobItem:
    """Claim the only job, run it, and return it."""
    claimed = await lease(store, solo=solo)
    (job,) = claimed.jobs
    await runner.run(claimed.token, job)
    return await job_item(store, job.id)


async def test_it_commits_with_the_end_of_the_job(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival("evt_1"))
    item = await run_next(store, make_runner(store))
    assert (item.status, item.failure_type, item.attempts) == (
        JobStatus.FAILED,
        FailureType.PERMANENT,
        1,
    )
    assert (item.last_error, item.finished_at is None) == ("no such account", False)
    assert notes(raw_db) == ["evt_1: no such account"]
    detail = await store.job(int(item.id), attempts=9)
    assert detail is not None
    assert [(each.number, each.error) for each in detail.failed_attempts] == [
        (1, "no such account")
    ]


async def test_it_does_not_run_before_the_last_attempt(store: Store, raw_db: RawDatabase) -> None:
    async def fail(event: Event[Any]) -> None:
        raise ValueError("again")

    await record(store, arrival("evt_1"))
    runner = make_runner(store, function=fail)
    assert (await run_next(store, runner)).status == JobStatus.QUEUED
    assert notes(raw_db) == []
    item = await run_next(store, runner)
    assert (item.failure_type, item.attempts) == (FailureType.EXHAUSTED, 2)
    assert len(notes(raw_db)) == 1


async def test_it_may_be_sync_and_name_any_of_its_arguments(
    store: Store, raw_db: RawDatabase
) -> None:
    errors = []

    def keep(error: BaseException) -> None:
        errors.append(error)

    def write(tx: SyncTransaction) -> None:
        tx.execute(INSERT, {"text": "sync"})

    functions: list[HandlerFunction] = [keep, write]
    for number, function in enumerate(functions):
        await record(store, arrival(f"evt_{number}"))
        assert (await run_next(store, make_runner(store, function))).status == JobStatus.FAILED
    assert isinstance(errors[0], PermanentError)
    assert notes(raw_db) == ["sync"]


async def test_a_batch_handler_has_it_for_each_event(store: Store, raw_db: RawDatabase) -> None:
    async def fail(events: list[Event[Any]], tx: Transaction) -> None:
        raise PermanentError("no such account")

    handler = make_batch_handler(fail, ["invoice.paid"], name="credit", on_failed=note)
    await record(store, arrival("evt_1"))
    await run_next(store, runner_of(store, handler))
    assert notes(raw_db) == ["evt_1: no such account"]


class Invoice(msgspec.Struct):
    """A payload with a number."""

    amount: int


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"amount": 5}', Invoice(5)),
        (b'{"amount": "much"}', {"amount": "much"}),
        (b"{", None),
    ],
)
async def test_the_payload_is_decoded_as_far_as_it_can_be(
    store: Store, body: bytes, expected: object
) -> None:
    payloads = []

    async def keep(event: Event[Any]) -> None:
        payloads.append((event.payload, event.body))

    await record(store, arrival("evt_1", body=body))
    await run_next(store, make_runner(store, keep, model=Invoice))
    assert payloads == [(expected, body)]


async def test_a_body_that_is_no_longer_stored_is_empty(store: Store, raw_db: RawDatabase) -> None:
    payloads = []

    async def keep(event: Event[Any]) -> None:
        payloads.append((event.payload, event.body))

    await record(store, arrival("evt_1"))
    raw_db.rows("DELETE FROM onceward.payloads")
    assert (await run_next(store, make_runner(store, keep))).status == JobStatus.FAILED
    assert payloads == [(None, b"")]


async def _raise(tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": "rolled back"})
    raise ValueError(f"the secret is {SECRET}")


async def _swallow(tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": "rolled back"})
    try:
        await tx.execute("INSERT INTO nowhere VALUES (1)")
    except Exception:  # noqa: BLE001 - what the function does is the point
        await asyncio.sleep(0)


async def _hang(tx: Transaction) -> None:
    await tx.execute(INSERT, {"text": "rolled back"})
    await asyncio.Event().wait()


def _sleep(tx: SyncTransaction) -> None:
    tx.execute(INSERT, {"text": "rolled back"})
    time.sleep(0.2)  # beyond its timeout: a thread cannot be stopped


async def _return_error() -> Exception:
    return ValueError("returned")


async def _exit() -> None:
    raise SystemExit


def _misspell(event: Event[Any]) -> None:
    event.data  # type: ignore[attr-defined] # noqa: B018 - the mistake


_TIMEOUT = "on_failed of credit took longer than 0.1 s"


FAULTS: Final[dict[HandlerFunction, str]] = {
    _raise: "the secret is",
    _swallow: "nowhere",
    _hang: _TIMEOUT,
    _sleep: _TIMEOUT,
    _return_error: "returned",
    _exit: "exit",
    _misspell: "use event.payload",
}


async def test_its_fault_is_recorded_and_does_not_change_the_end(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for fault, reason in FAULTS.items():
        with subtests.test(fault.__name__):
            caplog.clear()
            await record(store, arrival(fault.__name__))
            item = await run_next(store, make_runner(store, fault, timeout_seconds=0.1))
            check_fault(item, caplog, fault, reason)
            assert notes(raw_db) == []


def check_fault(
    item: JobItem, caplog: pytest.LogCaptureFixture, fault: HandlerFunction, reason: str
) -> None:
    assert (item.status, item.failure_type, item.attempts) == (
        JobStatus.FAILED,
        FailureType.PERMANENT,
        1,
    )
    assert item.last_error is not None
    assert item.last_error.startswith("no such account; on_failed raised ")
    assert reason in item.last_error
    assert SECRET not in item.last_error + caplog.text
    (entry,) = [each for each in caplog.records if "without on_failed" in each.message]
    assert entry.levelno == logging.ERROR
    if fault in (_raise, _hang):
        assert vars(entry)["location"].endswith(f" in {fault.__name__}")
        assert vars(entry)["location"] in entry.message
    (failure,) = [each for each in caplog.records if "failed for good" in each.message]
    assert "; on_failed runs now, and the job ends with it; " in failure.message


async def _retry_later() -> None:
    raise RetryLater(1)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (_return_error, ": on_failed returned ValueError instead of raising it; write raise"),
        (_retry_later, "raised RetryLater, but a job that has failed is not retried; raise it in"),
    ],
)
async def test_its_fault_is_not_called_one_of_the_handler(
    store: Store, fault: HandlerFunction, text: str
) -> None:
    await record(store, arrival("evt_1"))
    item = await run_next(store, make_runner(store, fault))
    assert text in str(item.last_error)


async def test_a_value_that_it_returns_cannot_fail_the_job(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await record(store, arrival("evt_1"))
    item = await run_next(store, make_runner(store, lambda: "noted"))
    assert item.last_error == "no such account"
    assert "returned a str, which is ignored; the job fails in any case" in caplog.text


async def test_a_lost_lease_commits_nothing(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    await record(store, arrival("evt_1"))
    claimed = await lease(store)
    (job,) = claimed.jobs

    async def lose(event: Event[Any], tx: Transaction) -> None:
        await store.cancel(job.id, ACT)
        await tx.execute(INSERT, {"text": "rolled back"})

    await make_runner(store, lose).run(claimed.token, job)
    assert (await job_item(store, job.id)).status == JobStatus.CANCELLED
    assert notes(raw_db) == []
    assert "the lease was lost" in caplog.text


async def test_a_worker_that_stops_meanwhile_leaves_both_to_the_next_one(
    store: Store, raw_db: RawDatabase
) -> None:
    is_running = asyncio.Event()

    async def hang(event: Event[Any], tx: Transaction) -> None:
        await tx.execute(INSERT, {"text": "rolled back"})
        is_running.set()
        await asyncio.Event().wait()

    await record(store, arrival("evt_1"))
    claimed = await lease(store)
    (job,) = claimed.jobs
    attempt = asyncio.create_task(make_runner(store, hang).run(claimed.token, job))
    await is_running.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert (await job_item(store, job.id)).status == JobStatus.IN_PROGRESS
    assert notes(raw_db) == []


async def test_a_long_outage_is_logged_and_leaves_the_job_to_the_next_worker(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose(event: Event[Any]) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(giving_up, "MAX_SETTLE_TRIES", 1)
    await record(store, arrival("evt_1"))
    item = await run_next(store, make_runner(store, lose))
    assert item.status == JobStatus.IN_PROGRESS
    assert f"job {item.id} could not be settled" in caplog.text


async def test_it_is_in_the_transaction_that_settles_the_job(
    store: Store, raw_db: RawDatabase
) -> None:
    """Nothing is committed if the settlement is not: the process may die between the two."""
    await record(store, arrival("evt_1"))
    claimed = await lease(store)
    (job,) = claimed.jobs
    failure = Fail(FailureType.PERMANENT, "no such account")
    async with store.begin(lambda: "here") as transaction:
        await transaction.run(parse(INSERT)[0], {"text": "rolled back"})
        assert await transaction.settle_failed(claimed.token, job.id, failure, 0.1)
    assert (await job_item(store, job.id)).status == JobStatus.IN_PROGRESS
    assert notes(raw_db) == []


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
async def test_a_job_whose_effect_was_resolved_meanwhile_does_not_fail(
    store: Store, raw_db: RawDatabase, outcome: str
) -> None:
    await record(store, arrival("evt_1"))
    claimed = await lease(store)
    (job,) = claimed.jobs
    async with working(store) as work:
        await work.unit.mark_effect(job.id, "mail", None)
        await work.unit.commit()
    raw_db.rows(f"UPDATE onceward.effects SET status = '{outcome}'")  # noqa: S608 - two constants
    effect = raw_db.value("SELECT id FROM onceward.effects")
    failure = Fail(FailureType.UNKNOWN_OUTCOME, "unknown", effect=effect)
    async with store.begin(lambda: "here") as transaction:
        assert not await transaction.settle_failed(claimed.token, job.id, failure, 0.1)
    assert await store.settle_error(claimed.token, job.id, failure, 0.1)
    item = await job_item(store, job.id)
    assert (item.status, item.attempts) == (JobStatus.QUEUED, 1)
    (again,) = (await lease(store)).jobs
    assert not again.gives_up


def _away_in_a_group(text: str) -> Exception:
    return ExceptionGroup("tasks", [StoreUnavailable(text)])


OUTAGES: Final[dict[str, Callable[[str], Exception]]] = {
    "unavailable": StoreUnavailable,
    "connection lost": ConnectionLost,
    "outcome unknown": OutcomeUnknown,
    "in a group": _away_in_a_group,
}


async def test_an_outage_is_no_fault_of_it(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    runs = []

    async def fail_once(event: Event[Any], tx: Transaction, error: BaseException) -> None:
        runs.append(event.id)
        await note(event, tx, error)
        if runs.count(event.id) == 1:
            raise OUTAGES[event.id]("away")

    for name in OUTAGES:
        with subtests.test(name):
            await record(store, arrival(name))
            item = await run_next(store, make_runner(store, fail_once))
            assert (item.status, item.last_error) == (JobStatus.FAILED, "no such account")
            assert len([text for text in notes(raw_db) if text.startswith(f"{name}:")]) == 1


@pytest.mark.parametrize("is_full", [True, False])
async def test_a_full_disk_or_a_deadlock_is_no_fault_of_it(
    store: Store, raw_db: RawDatabase, database_url: str, *, is_full: bool
) -> None:
    runs = []

    async def fail_once(event: Event[Any], tx: Transaction, error: BaseException) -> None:
        runs.append(event.id)
        await note(event, tx, error)
        if len(runs) == 1:
            raise database_fault(database_url, is_full=is_full)

    await record(store, arrival("evt_1"))
    item = await run_next(store, make_runner(store, fail_once))
    assert (item.status, item.last_error) == (JobStatus.FAILED, "no such account")
    assert len(notes(raw_db)) == 1


def database_fault(database_url: str, *, is_full: bool) -> Exception:
    """Return an error that the database itself raised."""
    try:
        if database_url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(":memory:")) as connection:
                connection.execute("PRAGMA max_page_count = 1")
                connection.execute("CREATE TABLE too_much (text)")
        else:
            with psycopg.connect(database_url) as connection:
                state = "53100" if is_full else "40P01"
                connection.execute(f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$")
    except (sqlite3.Error, psycopg.Error) as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("fault", [ConnectionLost, psycopg.errors.DeadlockDetected])
async def test_a_function_that_never_gets_through_is_at_fault(
    store: Store, fault: Callable[[str], Exception]
) -> None:
    async def fail(tx: Transaction) -> None:
        raise fault("ended")

    await record(store, arrival("evt_1"))
    item = await run_next(store, make_runner(store, fail))
    assert item.last_error is not None
    assert item.last_error.startswith("no such account; on_failed raised")
    assert item.last_error.endswith("ended")


async def test_a_requeued_job_that_fails_again_runs_it_again(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, arrival("evt_1"))
    runner = make_runner(store)
    item = await run_next(store, runner)
    await store.requeue(int(item.id), ACT)
    assert (await run_next(store, runner)).attempts == 2
    assert len(notes(raw_db)) == 2
