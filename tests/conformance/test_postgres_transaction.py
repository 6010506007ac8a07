"""Handlers' transactions on PostgreSQL alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import product
from typing import Any

import psycopg
import pytest

from onceward.errors import (
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TransactionMisuse,
    Unwritable,
)
from onceward.model.jobs import Fail, FailureType, JobStatus
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import arrivals, lease, leased_job, opened, working


@pytest.fixture
def raw_db(postgres_url: str) -> RawDatabase:
    database = RawDatabase(postgres_url)
    database.rows("CREATE TABLE notes (id integer PRIMARY KEY, note text)")
    return database


@pytest.fixture
async def store(postgres_url: str, raw_db: RawDatabase) -> AsyncIterator[Store]:
    """Open a store. Handlers that run in turn get the same connection: session state would leak."""
    async with opened(postgres_url) as opened_store:
        yield opened_store


INSERT = "INSERT INTO notes (id, note) VALUES (:id, :note)"


SYNTAX = [
    ("SELECT :a::text || 'x'::text", "Ax"),
    ("SELECT (ARRAY[1, 2, 3])[2:3]", [2, 3]),
    ("SELECT E'it\\'s :a'", "it's :a"),
    ("SELECT $$:a; %s$$", ":a; %s"),
    ("/* :unused; /* %(x)s */ COMMIT; */ SELECT 1", 1),
    ("SELECT $tag$ $$ :a $tag$", " $$ :a "),
    ("""SELECT '{"a": 1}'::jsonb ? 'a'""", True),
]
"""Statements, and the value that each returns."""


async def test_postgresql_syntax_is_not_taken_for_parameters(
    store: Store, subtests: pytest.Subtests
) -> None:
    for sql, expected in SYNTAX:
        with subtests.test(sql):
            async with working(store) as work:
                values = {"a": "A"} if ":a::" in sql else {}
                assert await work.tx.fetch_value(sql, values) == expected


CHANGES = [
    ("SET lock_timeout = '7s'", "SELECT current_setting('lock_timeout')", "0"),
    ("SET ROLE pg_monitor", "SELECT current_user::text", "postgres"),
    (
        "SELECT set_config('work_mem', '7MB', false)",
        "SELECT current_setting('work_mem')",
        "4MB",
    ),
    ("SELECT pg_advisory_lock(7)", "SELECT count(*) FROM pg_locks WHERE objid = 7", 0),
    ("CREATE TEMP TABLE t (i int)", "SELECT to_regclass('pg_temp.t')::text", None),
    ("SELECT 1 AS i INTO TEMP t", "SELECT to_regclass('pg_temp.t')::text", None),
    ("LISTEN something", "SELECT count(*) FROM pg_listening_channels()", 0),
]
"""Changes of a session, and a question with the answer that an unchanged session gives."""


async def test_session_changes_do_not_reach_the_next_transaction(
    store: Store, subtests: pytest.Subtests
) -> None:
    for (sql, question, untouched), commits in product(CHANGES, [True, False]):
        with subtests.test(f"{sql}, {'commit' if commits else 'rollback'}"):
            async with working(store) as work:
                backend = await work.tx.fetch_value("SELECT pg_backend_pid()")
                await work.tx.execute(sql)
                if commits:
                    await work.unit.commit()
            async with working(store) as work:
                assert await work.tx.fetch_value("SELECT pg_backend_pid()") == backend
                assert await work.tx.fetch_value(question) == untouched


async def test_prepared_statements_survive_a_reset(store: Store, raw_db: RawDatabase) -> None:
    for number in range(12):
        async with working(store) as work:
            await work.tx.execute(INSERT, {"id": number, "note": "x"})
            if number % 4 == 3:
                await work.tx.execute("SET LOCAL work_mem = '7MB'")
            await work.unit.commit()
    assert raw_db.count("notes") == 12


async def test_a_reset_restores_the_settings_of_the_connection(store: Store) -> None:
    async with working(store) as work:
        await work.tx.execute("SET timezone = 'Asia/Tokyo'")
        await work.unit.commit()
    async with working(store) as work:
        row = await work.tx.fetch_one(
            "SELECT current_setting('timezone') AS zone, current_setting('jit') AS jit, "
            "current_setting('default_transaction_isolation') AS isolation"
        )
    assert row == {"zone": "UTC", "jit": "off", "isolation": "read committed"}


async def test_a_constraint_that_fails_at_commit_rolls_back(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.rows("CREATE TABLE parents (id integer PRIMARY KEY)")
    raw_db.rows(
        "ALTER TABLE notes ADD CONSTRAINT parent FOREIGN KEY (id) REFERENCES parents "
        "DEFERRABLE INITIALLY DEFERRED"
    )
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT, {"id": 1, "note": "orphan"})
        with pytest.raises(StoreError, match="foreign key"):
            await work.unit.settle(token, job.id)
    assert raw_db.count("notes") == 0
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


ENDINGS = [
    "DO $$ BEGIN COMMIT; END $$",
    "DO $$ BEGIN ROLLBACK; END $$",
    "CALL ends_it()",
    "SELECT 1 --\r; COMMIT",
    "COPY notes FROM STDIN",
    "COPY notes TO STDOUT",
    "VACUUM notes",
    "DISCARD ALL",
    "SELECT pg_terminate_backend(pg_backend_pid())",
    "SET TRANSACTION READ ONLY",
    "SET ROLE pg_monitor",
]


async def test_no_statement_commits_part_of_a_transaction(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    raw_db.rows("CREATE PROCEDURE ends_it() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'")
    for number, sql in enumerate(ENDINGS):
        with subtests.test(sql):
            note = {"id": number, "note": "x"}
            token, job = await leased_job(store, f"evt_{number}")
            async with working(store) as work:
                await work.tx.execute(INSERT, note)
                with suppress(TransactionMisuse, psycopg.Error, StoreError):
                    await asyncio.wait_for(work.tx.execute(sql), 2.0)
                with pytest.raises((TransactionMisuse, psycopg.Error, StoreError)):
                    await work.unit.settle(token, job.id)
            assert (number,) not in raw_db.rows("SELECT id FROM notes")
            assert await store.job_status(job.id) is JobStatus.IN_PROGRESS
            async with working(store) as work:
                await work.tx.execute(INSERT, note)
                assert await work.unit.settle(token, job.id)
            assert (number,) in raw_db.rows("SELECT id FROM notes")


async def test_a_handler_that_commits_and_begins_again_is_detected(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT, {"id": 1, "note": "x"})
        session: Any = work.unit._transaction
        await session._connection.execute("COMMIT")
        await session._connection.execute("BEGIN")
        with pytest.raises(TransactionMisuse, match="ended its own transaction"):
            await work.unit.settle(token, job.id)
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_an_on_failed_that_commits_and_begins_again_is_detected(store: Store) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.fetch("SELECT 1")
        session: Any = work.unit._transaction
        await session._connection.execute("COMMIT")
        await session._connection.execute("BEGIN")
        failure = Fail(FailureType.PERMANENT, "no")
        assert not await work.unit.settle_failed(token, job.id, failure, 0.1)
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_the_server_ends_a_transaction_that_idles_past_its_lease(
    postgres_url: str, raw_db: RawDatabase
) -> None:
    async with opened(postgres_url, lease_seconds=0.3) as store:
        token, job = await leased_job(store)
        async with working(store) as work:
            await work.tx.execute(INSERT, {"id": 1, "note": "x"})
            await asyncio.sleep(0.6)
            with pytest.raises((psycopg.Error, StoreError)):
                await work.unit.settle(token, job.id)
        assert raw_db.count("notes") == 0
        assert await store.settle_done(token, job.id)


async def test_a_lost_connection_rolls_back_and_is_replaced(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT, {"id": 1, "note": "x"})
        backend = await work.tx.fetch_value("SELECT pg_backend_pid()")
        raw_db.rows(f"SELECT pg_terminate_backend({backend})")
        with pytest.raises((psycopg.Error, StoreError)):
            await work.unit.settle(token, job.id)
    assert raw_db.count("notes") == 0
    assert await store.settle_done(token, job.id)


async def test_one_of_two_deadlocked_handlers_succeeds(
    postgres_url: str, raw_db: RawDatabase
) -> None:
    raw_db.rows("INSERT INTO notes VALUES (1, ''), (2, '')")
    update = "UPDATE notes SET note = note || 'x' WHERE id = :id"

    async def work_on(store: Store, token: str, job: int, *notes: int) -> bool:
        async with working(store) as work:
            for note in notes:
                await work.tx.execute(update, {"id": note})
                await asyncio.sleep(0.05)
            return await work.unit.settle(token, job)

    async with opened(postgres_url) as store:
        await store.record(arrivals(2))
        leased = await lease(store)
        results = await asyncio.gather(
            work_on(store, leased.token, leased.jobs[0].id, 1, 2),
            work_on(store, leased.token, leased.jobs[1].id, 2, 1),
            return_exceptions=True,
        )
        assert sum(result is True for result in results) == 1
        assert any(isinstance(result, psycopg.errors.DeadlockDetected) for result in results)
    assert raw_db.rows("SELECT note FROM notes") == [("x",), ("x",)]


@pytest.mark.parametrize("is_settling", [False, True])
async def test_a_server_that_stops_counts_as_an_outage_and_not_as_a_failed_statement(
    store: Store, raw_db: RawDatabase, *, is_settling: bool
) -> None:
    async with working(store) as work:
        backend = await work.tx.fetch_value("SELECT pg_backend_pid()")
        raw_db.rows(f"SELECT pg_terminate_backend({backend})")
        outage = OutcomeUnknown if is_settling else StoreUnavailable
        with pytest.raises(outage, match="administrator command"):
            await (work.unit.settle("token", 1) if is_settling else work.tx.fetch("SELECT 1"))


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SET ROLE pg_monitor", "permission denied for schema onceward. If the handler runs SET"),
        ("SET LOCAL ROLE pg_monitor", "permission denied for schema onceward. If the handler"),
        ("SET TRANSACTION READ ONLY", "the handler made its transaction read-only"),
    ],
)
async def test_a_handler_that_takes_the_right_to_end_its_job_gets_the_reason(
    store: Store, raw_db: RawDatabase, statement: str, reason: str
) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT, {"id": 1, "note": ""})
        await work.tx.execute(statement)
        with pytest.raises(Unwritable, match=f"the job cannot be marked as done: {reason}"):
            await work.unit.settle(token, job.id)
    assert raw_db.count("notes") == 0
    assert await store.settle_done(token, job.id)
