"""Each migration is applied once, and a database that lacks one is refused."""

import asyncio
import itertools
import re
import sqlite3
from pathlib import Path

import psycopg
import pytest

from onceward.errors import ConfigurationError, StoreBlocked, StoreError
from onceward.store import migrate
from onceward.store.locks import Lock
from onceward.store.migrate import Migration, migrations
from onceward.store.postgres import connections as postgres_connections
from onceward.store.postgres import schema
from onceward.store.sqlite import store as sqlite
from support.database import RawDatabase
from tests.factories import (
    EVERYTHING,
    arrival,
    make_store,
    opened,
    record,
    start_task,
    until_locks_are_awaited,
)


def dialect(url: str) -> str:
    return "sqlite" if url.startswith("sqlite:") else "postgres"


def labels(url: str) -> list[str]:
    return [migration.label for migration in migrations(dialect(url))]


async def error_at_open(url: str, *, serving: bool, migrate_at_start: bool) -> str:
    store = make_store(url, migrate_at_start=migrate_at_start)
    try:
        with pytest.raises(ConfigurationError) as raised:
            await store.open(serving=serving)
    finally:
        await store.close()
    return str(raised.value)


async def test_a_serving_process_applies_pending_migrations(bare_database_url: str) -> None:
    async with opened(bare_database_url) as store:
        await record(store, arrival())
    applied = RawDatabase(bare_database_url).rows("SELECT number, name FROM onceward.migrations")
    assert [f"{number:04} {name}" for number, name in applied] == labels(bare_database_url)


async def test_migrating_twice_changes_nothing(bare_database_url: str) -> None:
    async with opened(bare_database_url) as store:
        await record(store, arrival())
        assert await store.migrate() == []
    async with opened(bare_database_url) as store:
        assert len(await store.events(EVERYTHING)) == 1


async def test_a_store_can_migrate_before_it_is_opened(bare_database_url: str) -> None:
    store = make_store(bare_database_url, migrate_at_start=False)
    assert await store.migrate() == labels(bare_database_url)
    assert await store.migrate() == []
    await store.open(serving=True)
    await store.close()


async def test_a_migration_with_another_name_is_refused(bare_database_url: str) -> None:
    async with opened(bare_database_url):
        pass
    RawDatabase(bare_database_url).rows(
        "UPDATE onceward.migrations SET name = 'x' WHERE number = 2"
    )
    for serving, migrate_at_start in ((True, True), (True, False), (False, True)):
        message = await error_at_open(
            bare_database_url, serving=serving, migrate_at_start=migrate_at_start
        )
        assert "has the migration 0002 x, but" in message
        assert "this number is 0002 tracebacks" in message


FAILURES = {
    "0001 schema": "already exists",
    "0002 tracebacks": "column",
    "0003 workers": "already exists",
    "0004 worker_health": "column",
    "0005 duplicate_originals": "already exists",
    "0008 watermarks": "already exists",
}
"""Why a migration fails that is applied again."""


async def test_a_migration_without_its_row_is_named_and_the_row_fixes_it(
    bare_database_url: str, subtests: pytest.Subtests
) -> None:
    async with opened(bare_database_url) as store:
        await record(store, arrival())
    raw_db = RawDatabase(bare_database_url)
    for label, reason in FAILURES.items():
        with subtests.test(label):
            raw_db.rows(f"DELETE FROM onceward.migrations WHERE number = {int(label[:4])}")  # noqa: S608
            message = await error_at_open(bare_database_url, serving=True, migrate_at_start=True)
            failure, advice = message.splitlines()
            assert failure.startswith(f"Migration {label} failed: ")
            assert reason in failure
            table = "onceward_migrations" if raw_db.is_sqlite else "onceward.migrations"
            assert f"{table} lacks its row. Restore the database" in advice
            statement = advice.partition("add the row: ")[2]
            raw_db.rows(statement)
            async with opened(bare_database_url) as store:
                assert len(await store.events(EVERYTHING)) == 1


async def test_a_table_of_other_software_is_named(bare_database_url: str) -> None:
    raw_db = RawDatabase(bare_database_url)
    if not raw_db.is_sqlite:
        raw_db.rows("CREATE SCHEMA onceward")
    raw_db.rows("CREATE TABLE onceward.events (id integer)")
    for _ in range(2):
        message = await error_at_open(bare_database_url, serving=True, migrate_at_start=True)
        if raw_db.is_sqlite:
            path = bare_database_url.removeprefix("sqlite:///")
            assert message == (
                f"{path} has tables that Onceward did not create: table onceward_events already "
                "exists, but onceward_migrations does not exist. Choose another file, such as "
                "sqlite:///other.db, with --database, ONCEWARD_DATABASE_URL or Inbox(…)."
            )
        else:
            assert message.startswith("The schema onceward of the database ")
            assert message.endswith(
                ' has tables that Onceward did not create: relation "events" already exists, but '
                "onceward.migrations does not exist. Choose another database, such as "
                "postgresql://…/other, with --database, ONCEWARD_DATABASE_URL or Inbox(…)."
            )


async def test_a_failing_migration_is_named(
    bare_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations(dialect(bare_database_url))
    table = "broken" if dialect(bare_database_url) == "sqlite" else "onceward.broken"
    text = f"CREATE TABLE {table} (id integer); SELECT no_such_function()"
    number = known[-1].number + 1
    broken = Migration(number, "broken", text)
    monkeypatch.setattr(migrate, "migrations", lambda _: [*known, broken])
    store = make_store(bare_database_url)
    try:
        with pytest.raises(StoreError, match=rf"^Migration {number:04} broken failed: .*no_such"):
            await store.open(serving=True)
    finally:
        await store.close()
    tables = "sqlite_master" if bare_database_url.startswith("sqlite:") else "pg_tables"
    column = "name" if tables == "sqlite_master" else "tablename"
    count = f"SELECT count(*) FROM {tables} WHERE {column} = 'broken'"  # noqa: S608
    assert RawDatabase(bare_database_url).value(count) == 0


LOCKS = {
    "a table": "LOCK TABLE onceward.attempts IN ACCESS SHARE MODE",
    "the list of migrations": "LOCK TABLE onceward.migrations",
    "the lock of another migration": postgres_connections.lock_statement(Lock.MIGRATIONS),
}


async def test_a_migration_that_does_not_get_its_locks_names_who_has_them(
    bare_postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    monkeypatch.setattr(schema, "MIGRATION_LOCK_SECONDS", 1.0)
    monkeypatch.setattr(schema, "LOCK_TRY_SECONDS", 0.1)
    monkeypatch.setattr(schema, "PAUSE_SECONDS", 0.0)
    store = make_store(bare_postgres_url)
    await store.migrate()
    raw_db = RawDatabase(bare_postgres_url)
    raw_db.rows("ALTER TABLE onceward.attempts DROP COLUMN traceback")
    raw_db.rows("DELETE FROM onceward.migrations WHERE number = 2")
    for name, lock in LOCKS.items():
        with subtests.test(name), psycopg.connect(bare_postgres_url) as other:
            caplog.clear()
            other.execute(lock.encode())
            holder = f"It is held by process {other.info.backend_pid} ("
            with pytest.raises(StoreBlocked, match=re.escape(holder)):
                await store.migrate()
            assert holder in caplog.text  # one line for a minute of waiting
            assert len(caplog.records) == 1
    assert await store.migrate() == ["0002 tracebacks"]
    await store.close()


async def test_a_process_that_only_checks_the_schema_names_who_locked_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATION_LOCK_SECONDS", 0.2)
    store = make_store(postgres_url, migrate_at_start=False)
    RawDatabase(postgres_url).rows("CREATE TABLE notes (id int)")
    with psycopg.connect(postgres_url) as other, psycopg.connect(postgres_url) as unrelated:
        other.execute("LOCK TABLE onceward.migrations")
        unrelated.execute("LOCK TABLE notes")
        with pytest.raises(StoreBlocked, match=f"process {other.info.backend_pid} ") as raised:
            async with asyncio.timeout(20):
                await store.open(serving=True)
        assert f"process {unrelated.info.backend_pid} " not in str(raised.value)
    await store.close()


async def test_a_migration_and_a_transaction_that_wait_for_each_other_both_succeed(
    bare_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration that is ended for a deadlock has changed nothing, and can try again."""
    store = make_store(bare_postgres_url)
    await store.migrate()
    known = migrations("postgres")
    text = "ALTER TABLE onceward.jobs ADD a int; ALTER TABLE onceward.events ADD b int"
    added = Migration(known[-1].number + 1, "added", text)
    monkeypatch.setattr(migrate, "migrations", lambda _: [*known, added])
    async with await psycopg.AsyncConnection.connect(bare_postgres_url) as other:
        await other.execute("LOCK TABLE onceward.events IN ROW EXCLUSIVE MODE")
        applying = await start_task(store.migrate())
        await until_locks_are_awaited(bare_postgres_url)
        await other.execute("LOCK TABLE onceward.jobs IN ROW EXCLUSIVE MODE")
    assert await applying == [added.label]
    await store.close()


@pytest.mark.parametrize("step", ["_lock_tables", "_apply"])
@pytest.mark.parametrize(
    "error", [psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected]
)
async def test_a_migration_that_others_kept_from_a_lock_begins_again(
    bare_postgres_url: str, monkeypatch: pytest.MonkeyPatch, step: str, error: type[psycopg.Error]
) -> None:
    monkeypatch.setattr(schema, "PAUSE_SECONDS", 0.0)
    store = make_store(bare_postgres_url)
    await store.migrate()
    known = migrations("postgres")
    added = Migration(known[-1].number + 1, "added", "ALTER TABLE onceward.jobs ADD a int")
    monkeypatch.setattr(migrate, "migrations", lambda _: [*known, added])
    original, failures = getattr(schema, step), [error("busy")]

    async def fail_once(*args: object) -> None:
        await original(*args)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(schema, step, fail_once)
    assert await store.migrate() == [added.label]
    assert failures == []
    await store.close()


async def test_concurrent_processes_apply_each_migration_once(
    bare_database_url: str,
) -> None:
    stores = [make_store(bare_database_url) for _ in range(4)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    for store in stores:
        await store.close()
    assert sorted(itertools.chain(*applied)) == labels(bare_database_url)


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


async def test_the_error_names_the_migrations_and_the_command(bare_database_url: str) -> None:
    if bare_database_url.startswith("sqlite"):
        file_of(bare_database_url).touch()
    for serving, migrate_at_start in ((False, True), (False, False), (True, False)):
        message = await error_at_open(
            bare_database_url, serving=serving, migrate_at_start=migrate_at_start
        )
        assert "0001 schema" in message, (serving, migrate_at_start)
        assert message.endswith(". Run: onceward migrate app.py"), (serving, migrate_at_start)


async def test_a_process_that_does_not_serve_creates_no_file(sqlite_url: str) -> None:
    message = await error_at_open(sqlite_url, serving=False, migrate_at_start=True)
    file = file_of(sqlite_url)
    assert message.startswith(f"There is no file {file}. ")
    assert not file.exists()


async def test_a_process_that_does_not_serve_creates_nothing(
    bare_postgres_url: str,
) -> None:
    await error_at_open(bare_postgres_url, serving=False, migrate_at_start=True)
    raw_db = RawDatabase(bare_postgres_url)
    assert raw_db.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'") == 0


async def test_a_database_that_is_too_old_is_refused(
    bare_database_url: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(sqlite, "LOWEST_VERSION", (4, 0, 0))
    monkeypatch.setattr(postgres_connections, "LOWEST_VERSION", 99)
    for step in ("open", "serve", "migrate"):
        store = make_store(bare_database_url)
        start = store.migrate() if step == "migrate" else store.open(serving=step == "serve")
        with subtests.test(step):
            try:
                with pytest.raises(ConfigurationError, match=r"needs (4\.0\.0|99) or newer"):
                    await start
            finally:
                await store.close()


async def test_the_lowest_version_of_a_database_is_accepted(
    bare_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOWEST_VERSION", sqlite3.sqlite_version_info)
    if bare_database_url.startswith("postgresql:"):
        with psycopg.connect(bare_database_url) as connection:
            version = connection.info.server_version // 10_000
        monkeypatch.setattr(postgres_connections, "LOWEST_VERSION", version)
    store = make_store(bare_database_url)
    try:
        assert await store.migrate()
    finally:
        await store.close()
