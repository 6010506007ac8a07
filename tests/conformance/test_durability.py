"""A database that may lose what it acknowledged is refused, by the name of what is weak."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from onceward.errors import ConfigurationError
from support import postgres
from support.postgres import Cluster
from tests.factories import arrival, make_store, opened, record


async def faults(url: str) -> tuple[str, ...]:
    """What is said when a store opens to serve."""
    store = make_store(url)
    try:
        with pytest.raises(ConfigurationError) as refused:
            await store.open(serving=True)
    finally:
        await store.close()
    return refused.value.faults


@pytest.mark.parametrize(("level", "value"), [("normal", 1), ("off", 0)])
async def test_a_weaker_synchronous_of_sqlite_is_refused(
    sqlite_url: str, level: str, value: int
) -> None:
    weak, advice = await faults(f"{sqlite_url}?synchronous={level}")
    assert weak == f"SQLite runs with synchronous = {value}."
    assert "--allow-weak-durability" in advice


@pytest.mark.parametrize("level", ["full", "extra", "EXTRA"])
async def test_a_stronger_synchronous_of_sqlite_will_do(sqlite_url: str, level: str) -> None:
    async with opened(f"{sqlite_url}?synchronous={level}") as store:
        await record(store, arrival())


@pytest.mark.parametrize("option", ["synchronous=never", "journal_mode=off", "x"])
def test_an_option_that_is_none_is_refused(sqlite_url: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an option"):
        make_store(f"{sqlite_url}?{option}")


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:///:memory:", "sqlite:///?synchronous=full"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names no file"):
        make_store(url)


@pytest.fixture
def weak_postgres_url(postgres_url: str) -> str:
    """The address of a database that does not wait for its disk."""
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(name))
        )
    return postgres_url


async def test_a_postgresql_that_does_not_wait_for_its_disk_is_refused(
    weak_postgres_url: str,
) -> None:
    weak, advice = await faults(weak_postgres_url)
    assert weak == "PostgreSQL runs with synchronous_commit = off."
    assert "ONCEWARD_ALLOW_WEAK_DURABILITY" in advice


async def test_the_users_own_options_are_looked_at_too(postgres_url: str) -> None:
    weak, _ = await faults(f"{postgres_url}?options=-c%20synchronous_commit%3Doff")
    assert weak == "PostgreSQL runs with synchronous_commit = off."


async def test_weak_durability_can_be_accepted(weak_postgres_url: str, sqlite_url: str) -> None:
    for url in (weak_postgres_url, f"{sqlite_url}?synchronous=off"):
        async with opened(url, allow_weak_durability=True) as store:
            await record(store, arrival())


async def test_who_only_looks_need_not_be_durable(weak_postgres_url: str) -> None:
    async with opened(weak_postgres_url, serving=False) as store:
        await store.ready()


@pytest.fixture
def weak_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A server that does not write as it must."""
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


async def test_recording_waits_for_the_disk_although_claiming_does_not(postgres_url: str) -> None:
    """Only a claim may be lost in a crash: it is a lease lost."""
    async with opened(postgres_url) as store:
        await record(store, arrival())
        with psycopg.connect(postgres_url) as connection:
            connection.execute("CREATE TABLE seen (what text, level text)")
            connection.execute(
                "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "INSERT INTO public.seen VALUES (TG_TABLE_NAME || ' ' || TG_OP, "
                "current_setting('synchronous_commit')); RETURN NULL; END $$"
            )
            for table in ("events", "jobs", "leases", "audit"):
                connection.execute(
                    sql.SQL(
                        "CREATE TRIGGER see AFTER INSERT OR UPDATE ON onceward.{} "
                        "FOR EACH STATEMENT EXECUTE FUNCTION see()"
                    ).format(sql.Identifier(table))
                )
        await record(store, arrival("next"))
        held = (
            await store.claim(
                token="t",
                worker="w",
                handlers=["credit"],
                limit=1,
                solo=False,
                lease_seconds=60.0,
                ended=[],
            )
        ).lease
        assert held is not None
        await store.settle_done(held.token, held.jobs[0].id)
    with psycopg.connect(postgres_url) as connection:
        seen = set(connection.execute("SELECT what, level FROM seen").fetchall())
    assert seen == {
        ("events INSERT", "on"),
        ("jobs INSERT", "on"),
        ("leases INSERT", "off"),
        ("jobs UPDATE", "off"),  # by the rescue, which is a part of every claim
        ("jobs UPDATE", "on"),
    }
