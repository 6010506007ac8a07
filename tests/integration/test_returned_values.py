"""A handler that returns an error instead of raising it fails its job and commits nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import HTTPException

from onceward import Inbox, RetryLater, SyncTransaction, Transaction
from onceward.model.jobs import JobStatus
from support.database import RawDatabase
from tests.inprocess import run_inbox

INSERT = "INSERT INTO notes VALUES ('never')"


async def late(tx: Transaction) -> object:
    await tx.execute(INSERT)
    return RetryLater(60, "no warehouse yet")


def late_in_a_thread(tx: SyncTransaction) -> object:
    tx.execute(INSERT)
    return RetryLater(60, "no warehouse yet")


@pytest.mark.parametrize("function", [late, late_in_a_thread])
async def test_a_returned_error_fails_the_job(
    database_url: str, function: Callable[..., Any]
) -> None:
    inbox = Inbox()
    inbox.on("a")(function)

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE notes (text varchar)")

    async with run_inbox(inbox, database_url) as bench:
        job = await bench.run_event("a")
    line = f"tests/integration/test_returned_values.py:{function.__code__.co_firstlineno}"
    assert (job.status, job.failure_type) == (JobStatus.FAILED, "permanent")
    assert job.last_error == (
        f"{line}: the handler returned RetryLater instead of raising it; write raise RetryLater(…)"
    )
    assert RawDatabase(database_url).count("notes") == 0


async def test_an_error_for_a_response_is_logged(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()

    @inbox.on("a", max_attempts=1)
    def book() -> None:
        raise HTTPException(422)

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("a")
    assert job.status is JobStatus.FAILED
    assert "raised an HTTPException, which changes no response" in caplog.text


async def test_another_returned_value_is_logged_and_the_job_is_done(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()

    @inbox.on("a")
    def book() -> object:
        return {"statusCode": 500}

    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("a")
    assert job.status is JobStatus.DONE
    assert "returned a dict, which is ignored; raise an error to fail the job" in caplog.text
