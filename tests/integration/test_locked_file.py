"""A handler that opens the SQLite file itself and does not commit: the log and /readyz name it."""

import sqlite3
from pathlib import Path

import pytest

from onceward import Event, Inbox
from onceward.model.jobs import JobStatus
from onceward.store.sqlite import store as sqlite
from support.processes import eventually_async
from tests.inprocess import run_inbox

FILE = Path(__file__).name
LOCKED = (
    "database is locked: another connection holds the write lock of the SQLite file. If a handler "
    "opens the file itself, use tx instead; else end the transaction of the other program"
)


async def test_a_connection_of_a_handler_that_keeps_the_lock_is_reported_until_it_ends(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    connections: list[sqlite3.Connection] = []
    inbox = Inbox()

    @inbox.on("a")
    async def book(event: Event[None]) -> None:
        if not connections:
            connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
            connection.execute("CREATE TABLE notes (text)")
            connection.execute("INSERT INTO notes VALUES (1)")  # begins, and nothing commits
            connections.append(connection)

    async with run_inbox(inbox, sqlite_url, lease_seconds=1.0) as bench:
        await bench.post("a")
        await eventually_async(bench.warnings, "/readyz warns")
        warning, *_ = await bench.warnings()  # a second one says that no job can be claimed
        assert warning == (
            "No event can be recorded and no handler can run: another connection holds the write "
            "lock of the SQLite file. If a handler opens the file itself, use tx instead; the log "
            "has the details."
        )

        async def is_logged() -> bool:
            return "the database was unavailable" in caplog.text

        await eventually_async(is_logged, "the job is logged")
        connections[0].close()
        await bench.wait_until_idle()
        assert (await bench.job()).status is JobStatus.DONE

        async def has_no_warnings() -> bool:
            return await bench.warnings() == []

        await eventually_async(has_no_warnings, "the warnings end")
    line = book.__code__.co_firstlineno
    messages = [record.getMessage() for record in caplog.records]
    (job_line,) = [text for text in messages if "the database was unavailable" in text]
    assert job_line.startswith("job 1 of handler 'book' (")
    assert f"{FILE}:{line})" in job_line
    assert job_line.endswith(f": {LOCKED}")
