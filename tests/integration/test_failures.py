"""Failed attempts: their tracebacks in the ledger, and their log lines."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import pytest

from onceward import (
    Effects,
    Event,
    Inbox,
    PermanentError,
    RetryLater,
    SyncTransaction,
    Transaction,
)
from onceward.errors import StoreUnavailable
from onceward.runtime.log_fields import FIELDS
from support.database import RawDatabase
from tests.inprocess import run_inbox

FILE = "tests/integration/test_failures.py"
SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
PAYLOAD_VALUE = "jane-payload-value"


class Order(msgspec.Struct):
    amount: int


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    """Return the records of the worker's logger."""
    caplog.set_level(logging.DEBUG, "onceward")

    def collect() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "onceward.work"]

    return collect


Records = Callable[[], list[logging.LogRecord]]


def connect(address: str) -> NoReturn:
    raise ConnectionError("no route to the host")


def line_of(function: Callable[..., object], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


def tracebacks(url: str) -> list[str]:
    rows = RawDatabase(url).rows("SELECT traceback FROM onceward.attempts ORDER BY job, number")
    return [text for (text,) in rows]


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name in FIELDS}


# In the ledger.


async def test_every_failed_attempt_keeps_the_lines_that_raised(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.on("a", max_attempts=2)
    async def send(event: Event[Any]) -> None:
        connect(event.payload["to"])

    @inbox.on("a", max_attempts=1)
    def send_sync(event: Event[Any]) -> None:
        connect(event.payload["to"])

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("a", {"to": PAYLOAD_VALUE})
        await bench.wait_until_idle()
    end = f"{FILE}:{line_of(connect, 1)} in connect"
    texts = [f"{FILE}:{line_of(send, 2)} in send\n{end}"] * 2
    texts.append(f"{FILE}:{line_of(send_sync, 2)} in send_sync\n{end}")
    assert sorted(tracebacks(database_url)) == sorted(texts)


async def test_a_failed_statement_is_located_in_the_handler(
    inbox: Inbox, database_url: str
) -> None:
    @inbox.on("a", max_attempts=1)
    async def write(tx: Transaction) -> None:
        await tx.execute("INSERT INTO missing VALUES (1)")

    @inbox.on("a", max_attempts=1)
    def write_sync(tx: SyncTransaction) -> None:
        tx.execute("INSERT INTO missing VALUES (1)")

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("a")
        await bench.wait_until_idle()
    for function in (write, write_sync):
        frame = f"{FILE}:{line_of(function, 2)} in {function.__name__}"
        assert [text for text in tracebacks(database_url) if text.splitlines()[0] == frame]
        assert all(
            FILE in line or "caused by" in line
            for text in tracebacks(database_url)
            for line in text.splitlines()
        )


async def test_a_payload_that_does_not_fit_has_no_traceback(
    inbox: Inbox, database_url: str, records: Records
) -> None:
    @inbox.on("a")
    async def book(event: Event[Order]) -> None: ...

    async with run_inbox(inbox, database_url) as bench:
        await bench.run_event("a", {"amount": PAYLOAD_VALUE})
    assert tracebacks(database_url) == [""]
    (record,) = records()
    assert "location" not in fields_of(record)
    assert "traceback" not in fields_of(record)


async def test_a_timeout_shows_where_the_handler_was(inbox: Inbox, database_url: str) -> None:
    release = threading.Event()

    async def wait() -> None:
        await asyncio.sleep(60)

    @inbox.on("slow", timeout_seconds=0.2, max_attempts=1)
    async def sleep() -> None:
        await wait()

    def spin_here() -> None:
        while not release.is_set():
            time.sleep(0.005)  # the test releases the thread

    @inbox.on("slow", timeout_seconds=0.2, max_attempts=1)
    def spin() -> None:
        spin_here()

    async with run_inbox(inbox, database_url) as bench:
        await bench.post("slow")
        await bench.wait_until_idle()
        release.set()
    in_sleep, in_spin = sorted(tracebacks(database_url), key=lambda text: "spin" in text)
    handler, helper, library = in_sleep.splitlines()
    assert handler == f"{FILE}:{line_of(sleep, 2)} in sleep"
    assert helper == f"{FILE}:{line_of(wait, 1)} in wait"
    assert library.startswith("asyncio/tasks.py:")
    assert in_spin.splitlines()[0] == f"{FILE}:{line_of(spin, 2)} in spin"
    assert in_spin.splitlines()[1].startswith(f"{FILE}:")


# In the log.


async def test_a_retry_is_a_warning_and_a_final_failure_an_error(
    inbox: Inbox, database_url: str, records: Records
) -> None:
    @inbox.on("a", max_attempts=2)
    async def send(event: Event[Any]) -> None:
        if event.id:
            raise RetryLater(0.1, "the bank is closed")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    location = f"{FILE}:{line_of(send, 3)} in send"
    retry, failure = records()
    assert (retry.levelname, failure.levelname) == ("WARNING", "ERROR")
    assert retry.getMessage() == (
        f"job {job.id} of handler 'send' failed, attempt 1 of 2; retrying in 0.1 s: "
        f"the bank is closed ({location})"
    )
    assert failure.getMessage() == (
        f"job {job.id} of handler 'send' failed for good after 2 attempts (exhausted): "
        f"the bank is closed ({location}); requeue it when the cause is fixed"
    )
    common = {
        "event_id": "evt_1",
        "source": "ingest",
        "type": "a",
        "job": int(job.id),
        "handler": "send",
        "max_attempts": 2,
        "error": "the bank is closed",
        "location": location,
        "traceback": location,
    }
    assert fields_of(retry) == {**common, "attempt": 1, "retry_in_seconds": 0.1}
    assert fields_of(failure) == {**common, "attempt": 2, "failure_type": "exhausted"}


async def test_a_permanent_failure_names_its_single_attempt(
    inbox: Inbox, sqlite_url: str, records: Records
) -> None:
    @inbox.on("a")
    async def refuse() -> None:
        raise PermanentError("no such order")

    async with run_inbox(inbox, sqlite_url) as bench:
        await bench.run_event("a")
    (record,) = records()
    assert "failed for good after 1 attempt (permanent): no such order" in record.getMessage()


async def test_an_attempt_that_does_not_count_is_a_warning(
    inbox: Inbox, sqlite_url: str, records: Records
) -> None:
    runs: list[None] = []

    @inbox.on("a")
    async def send() -> None:
        runs.append(None)
        if len(runs) == 1:
            raise StoreUnavailable("the disk is full")

    async with run_inbox(inbox, sqlite_url) as bench:
        await bench.run_event("a")
    (record,) = records()
    assert record.levelname == "WARNING"
    assert "the attempt does not count and runs again in" in record.getMessage()
    assert "the disk is full" in record.getMessage()


# Nothing leaks.


async def test_no_value_and_no_secret_is_stored_or_logged(
    inbox: Inbox, database_url: str, records: Records
) -> None:
    inbox.source("stripe", secrets=[SECRET])

    @inbox.on("a", max_attempts=2)
    async def leak(event: Event[Any], effects: Effects) -> None:
        value = event.payload["name"]
        try:
            assert value == SECRET
        except AssertionError as error:
            raise ValueError(f"{SECRET} of ann@example.com\nDETAIL: {value}") from error

    async with run_inbox(inbox, database_url) as bench:
        await bench.run_event("a", {"name": PAYLOAD_VALUE})
    stored = RawDatabase(database_url).rows("SELECT error, traceback FROM onceward.attempts")
    shown = [str(stored), *(str(fields_of(record)) + record.getMessage() for record in records())]
    assert len(shown) == 3
    for text in shown:
        assert "caused by AssertionError" in text
        for leaked in (SECRET, SECRET[6:], "ann@example.com", PAYLOAD_VALUE, "DETAIL", "assert "):
            assert leaked not in text


async def test_control_characters_of_the_sender_are_escaped_in_fields(
    inbox: Inbox, sqlite_url: str, records: Records
) -> None:
    @inbox.on("*", max_attempts=1)
    async def fail() -> None:
        raise OSError

    async with run_inbox(inbox, sqlite_url) as bench:
        await bench.post("a\x1b[31m", event_id="evt\r\n2")
        await bench.wait_until_idle()
    (record,) = records()
    fields = fields_of(record)
    assert (fields["type"], fields["event_id"]) == ("a\\x1b[31m", "evt\\r\\n2")


async def test_an_error_outside_the_users_code_names_the_definition_of_the_handler(
    inbox: Inbox, sqlite_url: str, records: Records
) -> None:
    @inbox.on("a")
    async def credit(event: Event[Order]) -> None: ...

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("a")
    (record,) = records()
    assert record.getMessage().startswith(
        f"job {job.id} of handler 'credit' ({FILE}:{line_of(credit, 0)}) failed for good after "
        "1 attempt (permanent): Malformed payload: expected object"
    )
