"""What only SQLite has: one file, one writer, one serving process."""

import asyncio
import gc
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

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
from onceward.store.sqlite import transaction as sqlite_session
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
    working,
)

ROOT = Path(__file__).parents[2]
INSERT = "INSERT INTO notes VALUES (1)"
ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT sum(i) FROM n"


@pytest.fixture
def raw_db(sqlite_url: str) -> RawDatabase:
    return RawDatabase(sqlite_url)


@pytest.fixture
async def store(sqlite_url: str, raw_db: RawDatabase) -> AsyncIterator[Store]:
    async with opened(sqlite_url) as it:
        raw_db.rows("CREATE TABLE notes (id integer)")
        yield it


@contextmanager
def locked(raw_db: RawDatabase) -> Iterator[None]:
    """The file, with another process's write lock on it."""
    with raw_db.connection() as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


async def test_a_handler_that_waits_inside_its_transaction_is_rolled_back_by_name(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    async with working(store, "handlers.py:12 in credit") as work:
        await work.tx.execute(INSERT)
        await asyncio.sleep(0.4)
        with pytest.raises(TransactionIdleTimeout, match=r"handlers\.py:12 in credit") as held:
            await work.tx.execute(INSERT)
        assert "250 ms" in str(held.value)
        with pytest.raises(TransactionIdleTimeout):
            await work.unit.settle(token, job.id)
    assert raw_db.count("notes") == 0
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_a_handler_that_waits_and_then_only_returns_is_found_out_too(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT)
        await asyncio.sleep(0.4)
        with pytest.raises(TransactionIdleTimeout):
            await work.unit.settle(token, job.id)
    assert raw_db.count("notes") == 0


async def test_many_short_waits_count_together(store: Store) -> None:
    async with working(store) as work:
        for _ in range(6):
            await work.tx.execute(INSERT)
            await asyncio.sleep(0.045)
        with pytest.raises(TransactionIdleTimeout):
            await work.tx.execute(INSERT)


async def test_recording_goes_on_while_a_handler_waits(store: Store) -> None:
    async with working(store) as work:
        await work.tx.execute(INSERT)
        (receipt,) = await asyncio.wait_for(record(store, arrival()), 1.5)
        assert receipt.outcome is Outcome.RECORDED


async def test_a_statement_that_runs_for_too_long_is_broken_off(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_session, "STATEMENT_SECONDS", 0.2)
    async with working(store, "handlers.py:3 in sum_up") as work:
        await work.tx.execute(INSERT)
        with pytest.raises(TransactionIdleTimeout, match=r"handlers\.py:3 in sum_up"):
            await work.tx.fetch(ENDLESS)
    assert raw_db.count("notes") == 0
    await record(store, arrival())


async def test_a_statement_that_nobody_waits_for_ends_without_a_word(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(store) as work:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work.tx.fetch(ENDLESS), 0.1)
    await record(store, arrival())  # the writer has ended what came before
    gc.collect()
    assert not [entry for entry in caplog.records if entry.name == "asyncio"]


@pytest.mark.parametrize("sql", ["/* /* */ COMMIT -- */ SELECT", "/* /* */ ROLLBACK -- */ SELECT"])
async def test_a_handler_that_got_past_the_check_and_ended_it_is_found_out(
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


async def test_a_statement_that_rolls_everything_back_cannot_be_swallowed(
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


async def test_a_file_that_another_process_locks_is_unavailable_until_it_is_free(
    sqlite_url: str, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    async with opened(sqlite_url) as store:
        await record(store, arrival("before"))
        with locked(raw_db):
            with pytest.raises(StoreUnavailable, match="locked"):
                await record(store, arrival("during"))
            with pytest.raises(StoreUnavailable):
                await claim(store)
            with pytest.raises(Exception, match="locked"):
                async with working(store) as work:
                    await work.tx.execute("DELETE FROM onceward_audit")
            await store.ready()  # reading needs no lock
        (receipt,) = await record(store, arrival("during"))
        assert receipt.outcome is Outcome.RECORDED
        assert len((await lease(store)).jobs) == 2


async def test_a_lock_of_another_process_is_waited_for(store: Store, raw_db: RawDatabase) -> None:
    with locked(raw_db):
        recording = asyncio.create_task(record(store, arrival()))
        await asyncio.sleep(0.1)
        assert not recording.done()
    assert (await recording)[0].outcome is Outcome.RECORDED


async def test_a_second_serving_process_is_refused_with_the_reason(
    store: Store, sqlite_url: str
) -> None:
    second = make_store(sqlite_url)
    with pytest.raises(ConfigurationError, match="one serving process") as refused:
        await second.open(serving=True)
    assert "PostgreSQL" in str(refused.value)
    await record(store, arrival())


async def test_a_command_may_use_the_file_beside_the_server(store: Store, sqlite_url: str) -> None:
    await record(store, arrival())
    held = await lease(store)
    async with opened(sqlite_url, serving=False) as beside:
        assert len(await beside.events(EVERYTHING)) == 1
    assert await store.settle_done(held.token, held.jobs[0].id)


async def test_the_file_can_be_served_again_after_a_close(sqlite_url: str) -> None:
    for _ in range(3):
        async with opened(sqlite_url) as store:
            await record(store, arrival())
            (event,) = await store.events(EVERYTHING)
    assert event.deliveries == 3


@pytest.mark.parametrize("path", ["/nowhere/at/all.db", "."])
async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, path: str) -> None:
    store = make_store(f"sqlite:///{tmp_path / path}")
    with pytest.raises((ConfigurationError, StoreUnavailable), match=r"all\.db|test_a_file"):
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


async def test_the_leases_of_a_killed_process_are_rescued_when_the_file_is_opened(
    sqlite_url: str,
) -> None:
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, sqlite_url, cwd=ROOT
    )
    assert await killed.wait() == -signal.SIGKILL
    async with opened(sqlite_url) as store:
        after = await claim(store)
        assert (after.lease, after.solo_waiting) == (None, True)
        held = await lease(store, solo=True)
        assert held.jobs[0].attempts == 0
        assert await store.settle_done(held.token, held.jobs[0].id)


async def test_a_job_that_kills_the_process_alone_is_blamed_at_the_next_open(
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


async def test_a_lease_ends_by_the_stores_own_clock(sqlite_url: str) -> None:
    clock = FakeClock()
    async with opened(sqlite_url, clock=clock) as store:
        token, job = await leased_job(store)
        clock.seconds += 59.9
        assert not (await claim(store)).solo_waiting
        clock.seconds += 0.2
        assert (await claim(store)).solo_waiting
        assert not await store.settle_done(token, job.id)


async def test_recording_is_not_starved_by_handlers_and_they_are_not_by_it(store: Store) -> None:
    """A receiver and four handlers, all as fast as they can."""
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
