"""A database that may lose acknowledged events is refused, and the error names the setting."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from onceward.errors import ConfigurationError
from support import postgres
from support.postgres import Cluster
from tests.factories import arrival, claim, make_store, opened, record


async def faults(url: str) -> tuple[str, ...]:
    """Return the faults that keep a store from serving."""
    store = make_store(url)
    try:
        with pytest.raises(ConfigurationError) as raised:
            await store.open(serving=True)
    finally:
        await store.close()
    return raised.value.faults


@pytest.mark.parametrize(("level", "value"), [("normal", 1), ("off", 0)])
async def test_a_weak_synchronous_level_of_sqlite_is_refused(
    sqlite_url: str, level: str, value: int
) -> None:
    weak, advice = await faults(f"{sqlite_url}?synchronous={level}")
    assert weak == f"SQLite runs with synchronous = {value}."
    assert "--allow-weak-durability" in advice


@pytest.mark.parametrize("level", ["full", "extra", "EXTRA"])
async def test_a_durable_synchronous_level_of_sqlite_is_accepted(
    sqlite_url: str, level: str
) -> None:
    async with opened(f"{sqlite_url}?synchronous={level}") as store:
        await record(store, arrival())


@pytest.mark.parametrize("option", ["synchronous=never", "journal_mode=off", "x"])
def test_an_unknown_option_is_refused(sqlite_url: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an option"):
        make_store(f"{sqlite_url}?{option}")


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:///:memory:", "sqlite:///?synchronous=full"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names no file"):
        make_store(url)


@pytest.fixture
def weak_postgres_url(postgres_url: str) -> str:
    """Return the URL of a database that does not wait for its disk."""
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(name))
        )
    return postgres_url


async def test_a_database_that_does_not_wait_for_its_disk_is_refused(
    weak_postgres_url: str,
) -> None:
    weak, advice = await faults(weak_postgres_url)
    assert weak == "PostgreSQL runs with synchronous_commit = off."
    assert "ONCEWARD_ALLOW_WEAK_DURABILITY" in advice


async def test_options_in_the_url_are_checked_too(postgres_url: str) -> None:
    weak, _ = await faults(f"{postgres_url}?options=-c%20synchronous_commit%3Doff")
    assert weak == "PostgreSQL runs with synchronous_commit = off."


async def test_weak_durability_can_be_accepted(weak_postgres_url: str, sqlite_url: str) -> None:
    for url in (weak_postgres_url, f"{sqlite_url}?synchronous=off"):
        async with opened(url, allow_weak_durability=True) as store:
            await record(store, arrival())


async def test_a_process_that_does_not_serve_needs_no_durability(weak_postgres_url: str) -> None:
    async with opened(weak_postgres_url, serving=False) as store:
        await store.ready()


@pytest.fixture
def weak_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Start a server that does not sync its files."""
    weak = postgres.SETTINGS | {"fsync": "off", "full_page_writes": "off"}
    monkeypatch.setattr(postgres, "SETTINGS", weak)
    with Cluster() as cluster:
        yield cluster


async def test_a_server_that_does_not_sync_is_refused(weak_cluster: Cluster) -> None:
    *weak, _ = await faults(weak_cluster.create_database())
    assert sorted(weak) == [
        "PostgreSQL runs with fsync = off.",
        "PostgreSQL runs with full_page_writes = off.",
    ]


async def test_recording_waits_for_the_disk_and_claiming_does_not(postgres_url: str) -> None:
    """Read synchronous_commit in a trigger on each table. A lost claim is only a lost lease."""
    async with opened(postgres_url) as store:
        await record(store, arrival())
        with psycopg.connect(postgres_url) as connection:
            connection.execute("CREATE TABLE levels (change text, level text)")
            connection.execute(
                "CREATE FUNCTION log_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "INSERT INTO public.levels VALUES (TG_TABLE_NAME || ' ' || TG_OP, "
                "current_setting('synchronous_commit')); RETURN NULL; END $$"
            )
            for table in ("events", "jobs", "leases", "audit"):
                connection.execute(
                    sql.SQL(
                        "CREATE TRIGGER log_level AFTER INSERT OR UPDATE ON onceward.{} "
                        "FOR EACH STATEMENT EXECUTE FUNCTION log_level()"
                    ).format(sql.Identifier(table))
                )
        await record(store, arrival("next"))
        leased = (await claim(store, limit=1)).lease
        assert leased is not None
        await store.settle_done(leased.token, leased.jobs[0].id)
    with psycopg.connect(postgres_url) as connection:
        levels = set(connection.execute("SELECT change, level FROM levels").fetchall())
    assert levels == {
        ("events INSERT", "on"),
        ("jobs INSERT", "on"),
        ("leases INSERT", "off"),
        ("leases UPDATE", "off"),
        ("jobs UPDATE", "off"),  # the reclaim, a part of a claim
        ("jobs UPDATE", "on"),
    }


@pytest.mark.parametrize("table", ["events", "jobs", "payloads_default", "effects"])
async def test_a_table_that_a_crash_empties_is_refused(postgres_url: str, table: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        statement = sql.SQL("ALTER TABLE {} SET UNLOGGED")
        connection.execute(statement.format(sql.Identifier("onceward", table)))
    weak, advice = await faults(postgres_url)
    assert weak == (
        f"The table onceward.{table} is UNLOGGED, so a crash empties it (repair: ALTER TABLE "
        f"onceward.{table} SET LOGGED)."
    )
    assert "--allow-weak-durability" in advice
    async with opened(postgres_url, allow_weak_durability=True) as store:
        await record(store, arrival())


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("", "is missing"),
        (
            "ADD CONSTRAINT events_once UNIQUE (source, event_id, received_at)",
            "is UNIQUE (source, event_id, received_at)",
        ),
        (
            "ADD CONSTRAINT events_once UNIQUE (source, event_id) DEFERRABLE",
            "is UNIQUE (source, event_id) DEFERRABLE",
        ),
    ],
)
async def test_another_key_of_events_is_refused(postgres_url: str, change: str, found: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("ALTER TABLE onceward.events DROP CONSTRAINT events_once")
        if change:
            connection.execute(f"ALTER TABLE onceward.events {change}".encode())
    fault, advice = await faults(postgres_url)
    assert fault == (
        "The constraint events_once of the schema onceward must be UNIQUE (source, event_id), and "
        f"{found}."
    )
    assert advice.startswith("Without it, an event could be applied twice.")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("jobs", "UNIQUE (event, handler)"),
        ("effects", "UNIQUE (idempotency_key)"),
        ("watermarks", "PRIMARY KEY (handler, key)"),
    ],
)
async def test_a_table_without_its_key_is_refused(postgres_url: str, table: str, key: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"ALTER TABLE onceward.{table} DROP CONSTRAINT {table}_once".encode())
    fault, _ = await faults(postgres_url)
    assert fault == (
        f"The constraint {table}_once of the schema onceward must be {key}, and is missing."
    )
