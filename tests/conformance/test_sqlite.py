"""SQLite alone: one file, one writer, one serving process."""

import asyncio
import fcntl
import gc
import re
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from onceward.errors import (
    ConfigurationError,
    StoreUnavailable,
    TransactionIdleTimeout,
    TransactionMisuse,
)
from onceward.model.events import Outcome
from onceward.model.jobs import JobStatus
from onceward.ports import Store
from onceward.store.sqlite import store as sqlite
from onceward.store.sqlite import transaction as sqlite_transaction
from onceward.store.sqlite.database_file import DatabaseFile
from onceward.store.sqlite.file_lock import FileLock
from support.database import RawDatabase
from tests.factories import (
    EVERYTHING,
    FakeClock,
    arrival,
    arrivals,
    claim,
    job_item,
    lease,
    leased_job,
    make_store,
    opened,
    record,
    start_task,
    working,
)

ROOT = Path(__file__).parents[2]
INSERT = "INSERT INTO notes VALUES (1)"
ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT sum(i) FROM n"


class Colour(Enum):
    RED = "red"


@pytest.fixture
def raw_db(sqlite_url: str) -> RawDatabase:
    return RawDatabase(sqlite_url)


@pytest.fixture
async def store(sqlite_url: str, raw_db: RawDatabase) -> AsyncIterator[Store]:
    async with opened(sqlite_url) as opened_store:
        raw_db.rows("CREATE TABLE notes (id integer)")
        yield opened_store


@contextmanager
def locked(raw_db: RawDatabase) -> Iterator[None]:
    """Hold the write lock of the file, as another process would."""
    with raw_db.connection() as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


async def test_an_idle_transaction_is_rolled_back_and_the_error_names_the_handler(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    async with working(store, "handlers.py:12 in credit") as work:
        await work.tx.execute(INSERT)
        await asyncio.sleep(0.4)
        with pytest.raises(TransactionIdleTimeout, match=r"handlers\.py:12 in credit") as raised:
            await work.tx.execute(INSERT)
        assert str(raised.value) == (
            "handlers.py:12 in credit: waited over 250 ms with SQLite's only write transaction "
            "open; it was rolled back. Make slow calls before the first tx or effects call"
        )
        with pytest.raises(TransactionIdleTimeout):
            await work.unit.settle(token, job.id)
    assert raw_db.count("notes") == 0
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_an_idle_transaction_is_not_committed_by_the_return_of_the_handler(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT)
        await asyncio.sleep(0.4)
        with pytest.raises(TransactionIdleTimeout):
            await work.unit.settle(token, job.id)
    assert raw_db.count("notes") == 0


async def test_idle_times_add_up(store: Store) -> None:
    async with working(store) as work:
        for _ in range(6):
            await work.tx.execute(INSERT)
            await asyncio.sleep(0.045)
        with pytest.raises(TransactionIdleTimeout):
            await work.tx.execute(INSERT)


async def test_a_handler_is_not_blamed_for_a_task_that_blocks_the_event_loop(
    store: Store, raw_db: RawDatabase
) -> None:
    async with working(store) as work:
        await work.tx.execute(INSERT)
        for _ in range(2):
            asyncio.get_running_loop().call_soon(time.sleep, 0.3)
            await asyncio.sleep(0.01)
            await work.tx.execute(INSERT)
        await work.unit.commit()
    assert raw_db.count("notes") == 3


async def test_recording_continues_after_an_idle_transaction_is_rolled_back(store: Store) -> None:
    async with working(store) as work:
        await work.tx.execute(INSERT)
        (receipt,) = await asyncio.wait_for(record(store, arrival()), 1.5)
        assert receipt.outcome is Outcome.RECORDED


async def test_a_statement_that_exceeds_its_timeout_is_interrupted(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transaction, "STATEMENT_SECONDS", 0.2)
    async with working(store, "handlers.py:3 in sum_up") as work:
        await work.tx.execute(INSERT)
        with pytest.raises(TransactionIdleTimeout, match=r"handlers\.py:3 in sum_up"):
            await work.tx.fetch(ENDLESS)
    assert raw_db.count("notes") == 0
    await record(store, arrival())


async def test_a_cancelled_statement_ends_without_an_asyncio_warning(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(store) as work:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work.tx.fetch(ENDLESS), 0.1)
    await record(store, arrival())  # runs after the cancelled statement has ended
    gc.collect()
    assert not [entry for entry in caplog.records if entry.name == "asyncio"]


@pytest.mark.parametrize("sql", ["/* /* */ COMMIT -- */ SELECT", "/* /* */ ROLLBACK -- */ SELECT"])
async def test_a_handler_that_hides_its_commit_in_a_comment_is_detected(
    store: Store, sql: str
) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT)
        with pytest.raises(TransactionMisuse, match="ended its own transaction"):
            await work.tx.execute(sql)
        with pytest.raises(TransactionMisuse):
            await work.unit.settle(token, job.id)
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS
    await record(store, arrival("next"))


async def test_a_handler_cannot_swallow_an_implicit_rollback(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.rows("CREATE UNIQUE INDEX only_once ON notes (id)")
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT)
        with pytest.raises(sqlite3.IntegrityError):
            await work.tx.execute("INSERT OR ROLLBACK INTO notes VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError):
            await work.unit.settle(token, job.id)
    assert raw_db.count("notes") == 0
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_the_store_is_unavailable_while_another_process_locks_the_file(
    sqlite_url: str, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    async with opened(sqlite_url) as store:
        await record(store, arrival("before"))
        with locked(raw_db):
            assert not store.warnings
            with pytest.raises(StoreUnavailable, match="use tx instead"):
                await record(store, arrival("during"))
            with pytest.raises(StoreUnavailable):
                await claim(store)
            with pytest.raises(Exception, match="locked"):
                async with working(store) as work:
                    await work.tx.execute("DELETE FROM onceward_audit")
            await store.ready()  # reading needs no lock
            assert store.warnings
        (receipt,) = await record(store, arrival("during"))
        assert receipt.outcome is Outcome.RECORDED
        assert not store.warnings
        assert len((await lease(store)).jobs) == 2


async def test_a_transaction_of_a_handler_notices_a_lock_and_its_end(
    sqlite_url: str, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    async with opened(sqlite_url) as store:
        with locked(raw_db):
            with pytest.raises(StoreUnavailable, match="use tx instead"):
                async with working(store) as work:
                    await work.tx.execute("SELECT 1")
            assert store.warnings
        async with working(store) as work:
            await work.tx.execute("SELECT 1")
        assert not store.warnings


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])  # fails at opening, or to migrate
async def test_a_locked_file_cannot_be_opened_and_the_error_says_why(
    sqlite_url: str, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch, journal_mode: str
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    raw_db.rows(f"PRAGMA journal_mode = {journal_mode}")
    with locked(raw_db), pytest.raises(StoreUnavailable, match="another connection holds"):
        await make_store(sqlite_url).open(serving=True)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (Decimal("9.99"), "a Decimal; pass str(…)"),
        (["secret"], "a list; pass json.dumps(…)"),
        ({"secret"}, "a set; pass json.dumps(list(…))"),
        (object(), "an object; pass a str, a number, bytes or None"),
        (Colour.RED, "a Colour; pass its .value"),
        (2**64, "an int, which is too large for the database; pass str(…)"),
    ],
)
async def test_a_value_that_sqlite_cannot_store_is_named(
    store: Store, value: object, fault: str
) -> None:
    async with working(store) as work:
        with pytest.raises(TransactionMisuse, match=f":b is {re.escape(fault)}$"):
            await work.tx.execute("SELECT :a, :b", {"a": 1, "b": value})


async def test_recording_waits_for_a_short_lock_of_another_process(
    store: Store, raw_db: RawDatabase
) -> None:
    with locked(raw_db):
        recording = asyncio.create_task(record(store, arrival()))
        await asyncio.sleep(0.1)
        assert not recording.done()
    assert (await recording)[0].outcome is Outcome.RECORDED


async def test_a_second_serving_process_is_refused(store: Store, sqlite_url: str) -> None:
    second = make_store(sqlite_url)
    with pytest.raises(ConfigurationError, match="one serving process") as raised:
        await second.open(serving=True)
    assert "PostgreSQL" in str(raised.value)
    await record(store, arrival())
    with pytest.raises(ConfigurationError, match="one serving process"):
        await second.open(serving=True)  # the refused start left the lock alone


def lock_files(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.lock")]


async def test_no_lock_file_stays_behind(sqlite_url: str, tmp_path: Path) -> None:
    async with opened(sqlite_url):
        assert lock_files(tmp_path) == ["onceward.db.lock"]
    refused = make_store(sqlite_url, migrate_at_start=False)
    RawDatabase(sqlite_url).rows("DELETE FROM onceward_migrations")
    with pytest.raises(ConfigurationError):
        await refused.open(serving=True)
    assert lock_files(tmp_path) == []


def test_a_lock_on_a_deleted_file_does_not_count(tmp_path: Path) -> None:
    """Open the file as another process does, delete it, and lock it: a third one has the lock."""
    database = DatabaseFile(str(tmp_path / "onceward.db"))
    first, third = FileLock(database), FileLock(database)
    first.acquire()
    flock = fcntl.flock

    with pytest.MonkeyPatch.context() as patch:

        def pass_the_lock_on(*arguments: Any) -> None:
            patch.undo()
            first.release()
            third.acquire()
            flock(*arguments)

        patch.setattr(fcntl, "flock", pass_the_lock_on)
        with pytest.raises(ConfigurationError, match="one serving process"):
            FileLock(database).acquire()
    third.release()
    first.acquire()
    first.release()


async def test_a_command_may_use_the_file_while_it_is_served(store: Store, sqlite_url: str) -> None:
    await record(store, arrival())
    leased = await lease(store)
    async with opened(sqlite_url, serving=False) as beside:
        assert len(await beside.events(EVERYTHING)) == 1
    assert await store.settle_done(leased.token, leased.jobs[0].id)


async def test_the_file_can_be_served_again_after_it_is_closed(sqlite_url: str) -> None:
    for _ in range(3):
        async with opened(sqlite_url) as store:
            await record(store, arrival())
            (event,) = await store.events(EVERYTHING)
    assert event.deliveries == 3


@pytest.mark.parametrize("path", ["/nowhere/at/all.db", "."])
async def test_the_error_names_a_file_that_cannot_be_opened(tmp_path: Path, path: str) -> None:
    store = make_store(f"sqlite:///{tmp_path / path}")
    with pytest.raises((ConfigurationError, StoreUnavailable), match=r"all\.db|test_the_error"):
        await store.open(serving=True)


KILLED = """
import asyncio, os, signal, sys
from tests.factories import arrivals, lease, opened

async def die(url):
    async with opened(url) as store:
        await store.record(arrivals(2))
        await lease(store, worker="killed")
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(die(sys.argv[1]))
"""


async def test_opening_the_file_reclaims_the_leases_of_a_killed_process(
    sqlite_url: str,
) -> None:
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, sqlite_url, cwd=ROOT
    )
    assert await killed.wait() == -signal.SIGKILL
    async with opened(sqlite_url) as store:
        after = await claim(store)
        assert (after.lease, after.solo_waiting) == (None, True)
        leased = await lease(store, solo=True)
        assert leased.jobs[0].attempts == 0
        assert await store.settle_done(leased.token, leased.jobs[0].id)


async def test_an_attempt_whose_lease_had_not_expired_ends_after_its_start(
    sqlite_url: str, raw_db: RawDatabase
) -> None:
    async with opened(sqlite_url) as store:
        await record(store, arrival())
        await lease(store)
    async with opened(sqlite_url) as store:
        await lease(store, solo=True)
    async with opened(sqlite_url):
        assert raw_db.rows("SELECT number, started_at <= ended_at FROM onceward.attempts") == [
            (1, 1)
        ]


async def test_opening_the_file_blames_a_solo_job_that_killed_the_process(
    sqlite_url: str, raw_db: RawDatabase
) -> None:
    async with opened(sqlite_url) as store:
        await store.record(arrivals(1))
        job = (await lease(store)).jobs[0].id
    for attempts in range(4):
        async with opened(sqlite_url) as store:
            item = await job_item(store, job)
            assert item.attempts == attempts
            raw_db.make_due()
            await claim(store, solo=True)
    assert item.status is JobStatus.FAILED
    assert raw_db.count("onceward.attempts") == 3


async def test_leases_expire_by_the_injected_clock(sqlite_url: str) -> None:
    clock = FakeClock()
    async with opened(sqlite_url, clock=clock) as store:
        token, job = await leased_job(store)
        clock.seconds += 59.9
        assert not (await claim(store)).solo_waiting
        clock.seconds += 0.2
        assert (await claim(store)).solo_waiting
        assert not await store.settle_done(token, job.id)


async def test_neither_the_receiver_nor_the_handlers_starve(store: Store) -> None:
    """Run a receiver and four handlers, each as fast as it can."""
    waits: list[float] = []
    ran = 0
    until = time.monotonic() + 0.7

    async def receive() -> None:
        number = 0
        while time.monotonic() < until:
            started = time.monotonic()
            await record(store, arrival(f"evt_{number}"))
            waits.append(time.monotonic() - started)
            number += 1

    async def handle() -> None:
        nonlocal ran
        while time.monotonic() < until:
            async with working(store) as work:
                await work.tx.execute(INSERT)
                await asyncio.sleep(0.01)
                await work.unit.commit()
                ran += 1

    await asyncio.gather(receive(), *(handle() for _ in range(4)))
    assert len(waits) > 5
    assert max(waits) < 0.5
    assert ran > 5


async def test_a_transaction_that_was_rolled_back_while_idle_passes_the_gate_on_only_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transaction, "IDLE_SECONDS", 0.02)
    async with opened(sqlite_url) as store, working(store) as second:
        async with working(store) as idle:
            await idle.tx.execute("CREATE TABLE notes (id int)")
            monkeypatch.setattr(sqlite_transaction, "IDLE_SECONDS", 60.0)
            await second.tx.execute("CREATE TABLE notes (id int)")  # when the first is rolled back
        third = await start_task(record(store, arrival()))
        assert not third.done()
        await second.unit.commit()
        (receipt,) = await third
        assert receipt.outcome is Outcome.RECORDED


async def test_the_idle_time_of_a_transaction_ends_with_its_rollback(
    sqlite_url: str, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All transactions use one connection: a late rollback would undo the next one."""
    async with opened(sqlite_url) as store:
        raw_db.rows("CREATE TABLE notes (id int)")
        monkeypatch.setattr(sqlite_transaction, "IDLE_SECONDS", 0.05)
        async with working(store) as first:
            await first.tx.execute(INSERT)
        monkeypatch.setattr(sqlite_transaction, "IDLE_SECONDS", 60.0)
        async with working(store) as second:
            await second.tx.execute(INSERT)
            await asyncio.sleep(0.15)  # longer than the first may be idle
            await second.unit.commit()
    assert raw_db.count("notes") == 1
