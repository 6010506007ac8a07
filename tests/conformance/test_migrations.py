"""The schema comes up to date once, whoever asks, and is asked for where it is missing."""

import asyncio
import itertools

import pytest

from onceward.errors import ConfigurationError
from onceward.store.migrate import migrations
from support.database import RawDatabase
from tests.factories import EVERYTHING, arrival, make_store, opened, record


def names(url: str) -> list[str]:
    dialect = "sqlite" if url.startswith("sqlite:") else "postgres"
    return [f"{entry.number:04} {entry.name}" for entry in migrations(dialect)]


async def refusal(url: str, *, serving: bool, migrate_at_start: bool) -> str:
    store = make_store(url, migrate_at_start=migrate_at_start)
    try:
        with pytest.raises(ConfigurationError) as refused:
            await store.open(serving=serving)
    finally:
        await store.close()
    return str(refused.value)


async def test_opening_to_serve_brings_the_schema_up_to_date(bare_database_url: str) -> None:
    async with opened(bare_database_url) as store:
        await record(store, arrival())
    applied = RawDatabase(bare_database_url).rows("SELECT number, name FROM onceward.migrations")
    assert [f"{number:04} {name}" for number, name in applied] == names(bare_database_url)


async def test_applying_twice_does_nothing(bare_database_url: str) -> None:
    async with opened(bare_database_url) as store:
        await record(store, arrival())
        assert await store.migrate() == []
    async with opened(bare_database_url) as store:
        assert len(await store.events(EVERYTHING)) == 1


async def test_it_can_be_asked_for_before_anything_is_open(bare_database_url: str) -> None:
    store = make_store(bare_database_url, migrate_at_start=False)
    assert await store.migrate() == names(bare_database_url)
    assert await store.migrate() == []
    await store.open(serving=True)
    await store.close()


async def test_migrations_of_a_newer_version_are_no_concern(database_url: str) -> None:
    async with opened(database_url):
        pass
    RawDatabase(database_url).rows(
        "INSERT INTO onceward.migrations (number, name) VALUES (9999, 'from_the_future')"
    )
    for serving in (True, False):
        async with opened(database_url, serving=serving) as store:
            await record(store, arrival())
            assert await store.migrate() == []


async def test_several_that_migrate_at_once_apply_each_migration_once(
    bare_database_url: str,
) -> None:
    stores = [make_store(bare_database_url) for _ in range(4)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    for store in stores:
        await store.close()
    assert sorted(itertools.chain(*applied)) == names(bare_database_url)


@pytest.mark.parametrize(
    ("serving", "migrate_at_start"), [(False, True), (False, False), (True, False)]
)
async def test_a_database_without_the_schema_says_what_to_run(
    bare_database_url: str, *, serving: bool, migrate_at_start: bool
) -> None:
    message = await refusal(bare_database_url, serving=serving, migrate_at_start=migrate_at_start)
    assert "0001 schema" in message
    assert "onceward migrate" in message


async def test_looking_at_a_database_without_the_schema_leaves_it_alone(
    bare_postgres_url: str,
) -> None:
    await refusal(bare_postgres_url, serving=False, migrate_at_start=True)
    raw_db = RawDatabase(bare_postgres_url)
    assert raw_db.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'") == 0


async def test_upkeep_makes_the_partitions_of_the_coming_weeks(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'onceward.payloads'::regclass"
    before = raw_db.value(partitions)
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await record(one, arrival("before"))
        await asyncio.gather(one.maintenance(), two.maintenance())
        assert raw_db.value(partitions) == before == 6  # this week, four ahead, and the default
        await record(two, arrival("after"))
    assert raw_db.count("onceward.payloads_default") == 0
