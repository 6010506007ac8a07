"""Each migration is applied once, and a database that lacks one is refused."""

import asyncio
import itertools
import sqlite3

import psycopg
import pytest

from onceward.errors import ConfigurationError
from onceward.store.migrate import migrations
from onceward.store.postgres import connections as postgres_connections
from onceward.store.sqlite import store as sqlite
from support.database import RawDatabase
from tests.factories import EVERYTHING, arrival, make_store, opened, record


def labels(url: str) -> list[str]:
    dialect = "sqlite" if url.startswith("sqlite:") else "postgres"
    return [migration.label for migration in migrations(dialect)]


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


async def test_migrations_of_a_newer_version_are_ignored(database_url: str) -> None:
    async with opened(database_url):
        pass
    RawDatabase(database_url).rows(
        "INSERT INTO onceward.migrations (number, name) VALUES (9999, 'from_the_future')"
    )
    for serving in (True, False):
        async with opened(database_url, serving=serving) as store:
            await record(store, arrival())
            assert await store.migrate() == []


async def test_concurrent_processes_apply_each_migration_once(
    bare_database_url: str,
) -> None:
    stores = [make_store(bare_database_url) for _ in range(4)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    for store in stores:
        await store.close()
    assert sorted(itertools.chain(*applied)) == labels(bare_database_url)


@pytest.mark.parametrize(
    ("serving", "migrate_at_start"), [(False, True), (False, False), (True, False)]
)
async def test_the_error_names_the_migrations_and_the_command(
    bare_database_url: str, *, serving: bool, migrate_at_start: bool
) -> None:
    message = await error_at_open(
        bare_database_url, serving=serving, migrate_at_start=migrate_at_start
    )
    assert "0001 schema" in message
    assert "onceward migrate" in message


async def test_a_process_that_does_not_serve_creates_nothing(
    bare_postgres_url: str,
) -> None:
    await error_at_open(bare_postgres_url, serving=False, migrate_at_start=True)
    raw_db = RawDatabase(bare_postgres_url)
    assert raw_db.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'") == 0


async def test_maintenance_creates_the_partitions_of_the_coming_weeks(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'onceward.payloads'::regclass"
    before = raw_db.value(partitions)
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await record(one, arrival("before"))
        await asyncio.gather(one.maintenance(), two.maintenance())
        assert raw_db.value(partitions) == before == 6  # this week, four ahead, and the default
        await record(two, arrival("after"))
    assert raw_db.count("onceward.payloads_default") == 0


@pytest.mark.parametrize("step", ["open", "migrate"])
async def test_a_database_that_is_too_old_is_refused(
    bare_database_url: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOWEST_VERSION", (4, 0, 0))
    monkeypatch.setattr(postgres_connections, "LOWEST_VERSION", 99)
    store = make_store(bare_database_url)
    try:
        with pytest.raises(ConfigurationError, match=r"needs (4\.0\.0|99) or newer"):
            await (store.open(serving=True) if step == "open" else store.migrate())
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
