"""A process that meets the schema of a newer version neither records nor claims."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from onceward.errors import NewerSchema
from onceward.ports import Store
from onceward.store import migrate
from onceward.store.migrate import Migration, newest, require_known
from onceward.store.postgres import schema
from onceward.store.postgres.recording import BatchWriter
from onceward.version import __version__
from support.database import RawDatabase
from tests.factories import (
    ACT,
    HANDLERS,
    SOURCES,
    arrival,
    claim,
    failed_job,
    leased_job,
    make_store,
    opened,
    processing,
    record,
    start_task,
    until_locks_are_awaited,
)

NEWER = "INSERT INTO onceward.migrations (number, name) VALUES (9999, 'from_the_future')"
LEDGER = ("events", "payloads", "jobs", "deliveries", "leases", "audit")


def migrate_to_a_newer_schema(url: str) -> None:
    """Change the key of a table that each start writes, as a newer version may do."""
    raw_db = RawDatabase(url)
    raw_db.rows(NEWER)
    raw_db.rows("ALTER TABLE onceward.routes RENAME TO ways")


@pytest.mark.parametrize("migrate_at_start", [True, False])
async def test_a_start_on_a_newer_schema_names_both_versions(
    bare_database_url: str, subtests: pytest.Subtests, *, migrate_at_start: bool
) -> None:
    async with opened(bare_database_url):
        pass
    migrate_to_a_newer_schema(bare_database_url)
    known = newest("sqlite" if bare_database_url.startswith("sqlite") else "postgres")
    for step in ("serve", "open", "migrate"):
        store = make_store(bare_database_url, migrate_at_start=migrate_at_start)
        start = store.migrate() if step == "migrate" else store.open(serving=step == "serve")
        with subtests.test(step), pytest.raises(NewerSchema) as raised:
            await start
        await store.close()
        assert str(raised.value) == (
            f"Onceward {__version__} knows the schema up to {known.label}, and the database has "
            "9999 from_the_future: a newer version migrated it. Stop all processes, install that "
            "version, and start again (docs/upgrading.md)"
        )


async def lock_events(store: Store) -> None:
    async with processing(store, arrival("evt_9")):
        pass


REFUSED: dict[str, Callable[[Store], Awaitable[object]]] = {
    "a new event": lambda store: record(store, arrival("evt_9")),
    "a duplicate": lambda store: record(store, arrival("evt_1")),
    "a conflict": lambda store: record(store, arrival("evt_1", body=b"[]")),
    "a batch": lambda store: record(store, arrival("evt_1"), arrival("evt_9")),
    "an inline source": lock_events,
    "a claim": claim,
    "a claim without lost jobs": lambda store: claim(store, looks_for_lost=False),
    "a registration": lambda store: store.register(SOURCES, HANDLERS, []),
    "an operator": lambda store: store.requeue(1, ACT),
    "readiness": lambda store: store.ready(),
}


async def test_a_running_process_refuses_a_newer_schema(
    database_url: str, subtests: pytest.Subtests
) -> None:
    async with opened(database_url) as store:
        await failed_job(store, "evt_1")
        token, job = await leased_job(store, "evt_2")
        await record(store, arrival("evt_3"))
        for _ in range(2):  # each connection has what it keeps
            await claim(store, handlers=["notify"])
        raw_db = RawDatabase(database_url)
        raw_db.rows(NEWER)
        before = {table: raw_db.rows(f"SELECT * FROM onceward.{table}") for table in LEDGER}  # noqa: S608
        for name, call in REFUSED.items():
            for time in ("at first", "again"):
                with subtests.test(f"{name}, {time}"), pytest.raises(NewerSchema, match="has 9999"):
                    await call(store)
        after = {table: raw_db.rows(f"SELECT * FROM onceward.{table}") for table in LEDGER}  # noqa: S608
        assert after == before
        assert await store.settle_done(token, job.id)  # what runs may end
        raw_db.rows("DELETE FROM onceward.migrations WHERE number = 9999")
        await record(store, arrival("evt_9"))
        assert (await claim(store)).lease is not None


async def test_what_waits_for_a_migration_sees_it(postgres_url: str) -> None:
    """A statement must not run with a snapshot from before the migration."""
    async with opened(postgres_url) as store:
        for number in range(8):  # the driver prepares what it often runs
            await record(store, arrival(f"evt_{number}"))
            await record(store, arrival(f"evt_{number}"))
            await claim(store, limit=1)
        counts = [RawDatabase(postgres_url).count(f"onceward.{table}") for table in LEDGER]
        async with await psycopg.AsyncConnection.connect(postgres_url) as migration:
            await migration.execute("LOCK TABLE onceward.migrations IN ACCESS EXCLUSIVE MODE")
            waiting = [
                await start_task(record(store, arrival("evt_new"))),
                await start_task(record(store, arrival("evt_1"))),
                await start_task(claim(store, looks_for_lost=False)),
            ]
            await until_locks_are_awaited(postgres_url, len(waiting))
            await migration.execute(NEWER.encode())
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in results] == [NewerSchema] * 3
        assert [RawDatabase(postgres_url).count(f"onceward.{table}") for table in LEDGER] == counts


async def test_each_statement_on_a_connection_in_use_refuses_a_newer_schema(
    database_url: str, subtests: pytest.Subtests
) -> None:
    """After a failure, a connection looks again. So each call needs one that has not failed."""
    raw_db = RawDatabase(database_url)
    for name, call in REFUSED.items():
        async with opened(database_url) as store:
            for _ in range(2):  # the second time as a duplicate
                await record(store, arrival("evt_1"))
                await claim(store, handlers=["notify"])
                async with processing(store, arrival("evt_8")):
                    pass
            before = {table: raw_db.rows(f"SELECT * FROM onceward.{table}") for table in LEDGER}  # noqa: S608
            raw_db.rows(NEWER)
            with subtests.test(name), pytest.raises(NewerSchema, match="has 9999"):
                await call(store)
            after = {table: raw_db.rows(f"SELECT * FROM onceward.{table}") for table in LEDGER}  # noqa: S608
            assert after == before
            raw_db.rows("DELETE FROM onceward.migrations WHERE number = 9999")


async def test_a_migration_between_two_statements_of_a_batch_ends_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url) as store:
        await record(store, arrival("evt_1"))
    raw_db = RawDatabase(postgres_url)
    write_duplicates = BatchWriter._write_duplicates

    async def migrate_first(*args: Any) -> None:
        raw_db.rows(NEWER)
        await write_duplicates(*args)

    async with opened(postgres_url) as store:  # it remembers no event: it tries to record it first
        monkeypatch.setattr(BatchWriter, "_write_duplicates", migrate_first)
        with pytest.raises(NewerSchema):
            await record(store, arrival("evt_1"))
    assert raw_db.rows("SELECT deliveries FROM onceward.events") == [(1,)]
    assert raw_db.count("onceward.deliveries") == 0


async def test_the_next_migration_alone_is_newer() -> None:
    for dialect in ("sqlite", "postgres"):
        known = newest(dialect).number
        for number in (None, 1, known):
            require_known(dialect, number)
        with pytest.raises(NewerSchema, match=f"has {known + 1:04}: "):
            require_known(dialect, known + 1)


async def test_what_runs_beside_a_real_migration_waits_for_it_and_sees_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration locks all tables first: none of them is written until its row is there."""
    monkeypatch.setattr(schema, "LOCK_TRY_SECONDS", 30.0)
    migrator = make_store(postgres_url)
    async with opened(postgres_url) as store:
        for _ in range(2):
            await record(store, arrival("evt_1"))
            await claim(store, handlers=["notify"])
        raw_db = RawDatabase(postgres_url)
        counts = [raw_db.count(f"onceward.{table}") for table in LEDGER]
        known = migrate.migrations("postgres")
        text = "SELECT pg_advisory_xact_lock(1); ALTER TABLE onceward.jobs ADD a int"
        added = Migration(known[-1].number + 1, "added", text)
        monkeypatch.setattr(migrate, "migrations", lambda _: [*known, added])
        async with await psycopg.AsyncConnection.connect(postgres_url) as other:
            await other.execute("SELECT pg_advisory_xact_lock(1)")
            applying = await start_task(migrator.migrate())
            await until_locks_are_awaited(postgres_url)
            waiting = [
                await start_task(record(store, arrival("evt_new"))),
                await start_task(record(store, arrival("evt_1"))),
                await start_task(claim(store, looks_for_lost=False)),
            ]
            await until_locks_are_awaited(postgres_url, 4)
            unlocked = raw_db.rows(
                "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
                "WHERE nspname = 'onceward' AND relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM "
                "pg_locks WHERE relation = c.oid AND granted AND mode = 'AccessExclusiveLock')"
            )
            assert unlocked == []
        assert await applying == [added.label]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in results] == [NewerSchema] * 3
        assert [raw_db.count(f"onceward.{table}") for table in LEDGER] == counts
    await migrator.close()
