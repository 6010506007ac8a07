"""PostgreSQL alone: settings that others decided do not reach the statements."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from onceward.errors import StoreBlocked
from onceward.model.events import Outcome
from support.database import RawDatabase
from support.postgres import Cluster
from support.processes import eventually
from tests.factories import (
    ACT,
    BROKEN,
    EVERYTHING,
    arrival,
    lease,
    make_store,
    opened,
    record,
    working,
)

HOSTILE = {
    "client_encoding": "LATIN1",
    "client_min_messages": "error",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "bytea_output": "escape",
    "extra_float_digits": "-10",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Tokyo",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "row_security": "on",
    "jit": "on",
    "statement_timeout": "61s",
    "lock_timeout": "62s",
    "idle_in_transaction_session_timeout": "1h",
    "idle_session_timeout": "2h",
    "search_path": "public",
}
PINNED = {
    "client_encoding": "UTF8",
    "client_min_messages": "warning",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "DateStyle": "ISO, DMY",  # the order of day and month is for literals, which are the handler's
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "row_security": "off",
    "jit": "off",
    "idle_session_timeout": "0",
    "search_path": "pg_catalog",
}
FOR_HANDLERS = PINNED | {
    "row_security": "on",
    "statement_timeout": "61s",
    "lock_timeout": "62s",
    "search_path": "public",
}
ECHO = (
    "SELECT :text::text AS text, :moment::timestamptz AS moment, :span::interval AS span, "
    ":bytes::bytea AS bytes, :number::float8 AS number, :list::text[] AS list"
)


@pytest.fixture(params=["environment", "url", "role", "database"])
def hostile_url(
    request: pytest.FixtureRequest, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return the URL of a database on which each setting has another value than the default."""
    raw_db = RawDatabase(postgres_url)
    name = postgres_url.rpartition("/")[2]
    options = " ".join(f"-c {setting}={value}" for setting, value in HOSTILE.items())
    match request.param:
        case "environment":
            monkeypatch.setenv("PGOPTIONS", options)
            monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
            monkeypatch.setenv("PGTZ", "Asia/Tokyo")
            monkeypatch.setenv("PGDATESTYLE", "German")
        case "url":
            return f"{postgres_url}?client_encoding=LATIN1&options={quote(options)}"
        case "role" | "database":
            whose = "ROLE postgres IN DATABASE" if request.param == "role" else "DATABASE"
            for setting, value in HOSTILE.items():
                raw_db.rows(f"ALTER {whose} {name} SET {setting} = '{value}'")
    return postgres_url


def log_settings(raw_db: RawDatabase, settings: Iterable[str], tables: Iterable[str]) -> None:
    """Log the settings of the session at every change of some of our tables."""
    raw_db.rows("CREATE TABLE public.seen (change text, setting text, value text)")
    names = ", ".join(f"('{setting}')" for setting in settings)
    values = f"current_setting(name) FROM (VALUES {names}) AS t (name)"
    raw_db.rows(
        "CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO "
        f"public.seen SELECT TG_TABLE_NAME || ' ' || TG_OP, name, {values}; RETURN NULL; END $$"
    )
    for table in tables:
        raw_db.rows(
            f"CREATE TRIGGER see AFTER INSERT OR UPDATE ON onceward.{table} "
            "FOR EACH ROW EXECUTE FUNCTION public.see()"
        )


@pytest.fixture
def raw_db(hostile_url: str) -> RawDatabase:
    database = RawDatabase(hostile_url)
    tables = ("sources", "events", "leases", "jobs", "attempts", "audit", "effects")
    log_settings(database, HOSTILE, tables)
    return database


def seen(raw_db: RawDatabase, *changes: str) -> dict[str, set[str]]:
    """Return the values of each setting, over all of some changes of our tables."""
    found: dict[str, set[str]] = {}
    for change, setting, value in raw_db.rows("SELECT change, setting, value FROM public.seen"):
        if change in changes:
            found.setdefault(setting, set()).add(value)
    return found


async def test_settings_of_others_reach_no_statement(hostile_url: str, raw_db: RawDatabase) -> None:
    async with opened(hostile_url) as store:
        (first,) = await record(store, arrival("café-1"))
        (again,) = await record(store, arrival("café-1"))
        assert (first.event, Outcome.DUPLICATE) == (again.event, again.outcome)
        await record(store, arrival("failing"))
        leased = await lease(store)
        done, failing = leased.jobs
        assert [done.event_id, failing.event_id] == ["café-1", "failing"]
        assert await store.settle_done(leased.token, done.id)
        assert await store.settle_error(leased.token, failing.id, BROKEN, 0.1)
        await store.requeue(failing.id, ACT)
        assert {item.event_id for item in await store.events(EVERYTHING)} == {"café-1", "failing"}
    inserts = (f"{table} INSERT" for table in ("sources", "events", "leases", "jobs", "attempts"))
    found = seen(raw_db, *inserts, "events UPDATE", "jobs UPDATE", "audit INSERT")
    for setting in ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout"):
        assert HOSTILE[setting] not in found.pop(setting)  # they differ by purpose
    assert found == {setting: {value} for setting, value in PINNED.items()}


async def test_a_handler_has_the_path_and_the_limits_of_its_role(
    hostile_url: str, raw_db: RawDatabase
) -> None:
    moment, span = datetime(2026, 11, 17, 8, 30, tzinfo=UTC), timedelta(days=3, hours=4)
    values: dict[str, Any] = {
        "text": "café",
        "moment": moment,
        "span": span,
        "bytes": b"\\\x00\xff",
        "number": 0.1 + 0.2,
        "list": ["NULL", None],
    }
    async with opened(hostile_url) as store:
        await record(store, arrival())
        leased = await lease(store)
        async with working(store) as work:
            assert await work.tx.fetch_one(ECHO, values) == values
            assert await work.unit.mark_effect(leased.jobs[0].id, "café", None)
            assert await work.unit.settle(leased.token, leased.jobs[0].id)
    found = seen(raw_db, "jobs UPDATE", "effects INSERT")
    assert found.pop("idle_in_transaction_session_timeout") == {"1min"}  # the lease
    assert found == {setting: {value} for setting, value in FOR_HANDLERS.items()}


@pytest.fixture(params=["LATIN1", "SQL_ASCII", "EUC_JP"])
def other_encoding(
    request: pytest.FixtureRequest, postgres_cluster: Cluster
) -> Iterator[tuple[str, str]]:
    encoding: str = request.param
    raw_db = RawDatabase(postgres_cluster.url("postgres"))
    url = postgres_cluster.url(f"in_{encoding.lower()}")
    with raw_db.connection() as connection:
        connection.autocommit = True
        connection.execute(
            f"CREATE DATABASE in_{encoding} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'"
        )
    yield encoding, url
    postgres_cluster.drop(url)


async def test_a_database_with_another_encoding_is_refused_by_name(
    other_encoding: tuple[str, str],
) -> None:
    encoding, url = other_encoding
    for serving in (True, False):
        store = make_store(url)
        with pytest.raises(StoreBlocked) as raised:
            await store.open(serving=serving)
        await store.close()
        assert str(raised.value) == (
            f"The database in_{encoding.lower()} has the encoding {encoding}, which cannot store "
            "every event id. Use one with UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE "
            "template0"
        ), f"{serving=}"


USED_LEVELS = {
    "off": "on",
    "local": "local",
    "remote_write": "remote_write",
    "remote_apply": "remote_apply",
}


async def test_a_connection_opened_after_a_change_waits_for_the_disk(
    postgres_url: str, subtests: pytest.Subtests
) -> None:
    raw_db = RawDatabase(postgres_url)
    name = postgres_url.rpartition("/")[2]
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    log_settings(raw_db, ["synchronous_commit"], ["events", "jobs", "audit"])
    async with opened(postgres_url) as store:
        for level, used in USED_LEVELS.items():
            with subtests.test(level):
                await record(store, arrival(f"before {level}"))
                raw_db.rows(f"ALTER DATABASE {name} SET synchronous_commit = {level}")
                raw_db.rows("DELETE FROM public.seen")
                raw_db.rows(f"SELECT pg_terminate_backend(pid) {others}")
                eventually(lambda: raw_db.value(f"SELECT count(*) {others}") == 0, "all are closed")
                await record(store, arrival(f"after {level}"))
                leased = await lease(store)
                done, failed = leased.jobs
                async with working(store) as work:
                    await work.tx.execute("SELECT 1")
                    assert await work.unit.settle(leased.token, done.id)
                assert await store.settle_error(leased.token, failed.id, BROKEN, 0.1)
                await store.requeue(failed.id, ACT)
                assert await store.cancel(failed.id, ACT)
                assert raw_db.rows("SELECT DISTINCT value FROM public.seen") == [(used,)]
