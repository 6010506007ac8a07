"""PostgreSQL goes back to an earlier state under a running process: a failover, or a restore."""

from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import psycopg
import pytest

from onceward.errors import OutcomeUnknown
from onceward.model.events import Outcome
from onceward.model.jobs import HandlerEntry, QueueRules, Route
from onceward.ports import Store
from support.database import RawDatabase
from support.postgres import Cluster
from tests.factories import (
    EVERYTHING,
    HANDLERS,
    SOURCES,
    arrival,
    claim,
    lease,
    make_store,
    opened,
    record,
)

OTHERS = HandlerEntry("others", 3, (Route("invoice.voided", "partner"), Route("customer.*")))


class Restore:
    """Takes a copy of a database, and puts the copy in its place later."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._name = parts.path.removeprefix("/")
        self._server = parts._replace(path="/postgres").geturl()
        self._copy = f"{self._name}_copy"

    def take(self) -> None:
        self._run(self._disconnect, f"CREATE DATABASE {self._copy} TEMPLATE {self._name}")

    def put_back(self) -> None:
        self._run(
            self._disconnect,
            f"DROP DATABASE {self._name} WITH (FORCE)",
            f"ALTER DATABASE {self._copy} RENAME TO {self._name}",
        )

    @property
    def _disconnect(self) -> str:
        return (
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'"  # noqa: S608 - no outside data
        )

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


@pytest.fixture
def restore(postgres_cluster: Cluster, postgres_template: str) -> Callable[[], tuple[str, Restore]]:
    def create() -> tuple[str, Restore]:
        url = postgres_cluster.create_database(postgres_template)
        return url, Restore(url)

    return create


async def handlers_of(store: Store, event_id: str) -> list[str]:
    jobs = await store.jobs(EVERYTHING)
    return sorted(job.handler for job in jobs if job.external_event_id == event_id)


async def test_sources_and_routes_are_registered_again_before_anything_is_recorded(
    restore: Callable[[], tuple[str, Restore]], caplog: pytest.LogCaptureFixture
) -> None:
    url, older = restore()
    async with opened(url, sources=["first"], handlers=[]):  # takes the id that `ingest` gets
        pass
    older.take()
    async with opened(url, sources=[*SOURCES, "partner"]) as store:
        async with opened(url, serving=False, handlers=[OTHERS], sources=["partner"]):
            pass
        await store.register([*SOURCES, "partner"], HANDLERS, [])  # learns of the others' routes
        await record(store, arrival("lost"))
        older.put_back()
        batch = (
            arrival("after"),
            arrival("voided", source="partner", type="invoice.voided"),
            arrival("lost"),
        )
        assert [each.outcome for each in await record(store, *batch)] == [Outcome.RECORDED] * 3
        assert await handlers_of(store, "after") == ["credit"]
        assert await handlers_of(store, "voided") == ["others"]
        events = {event.event_id: event.source for event in await store.events(EVERYTHING)}
        assert events == {"after": "stripe", "voided": "partner", "lost": "stripe"}
    assert "the database went back to an earlier state" in caplog.text


async def test_a_worker_claims_the_jobs_of_its_own_handlers_after_a_restore(
    restore: Callable[[], tuple[str, Restore]],
) -> None:
    """The id of a handler may belong to another one in the older copy."""
    url, older = restore()
    async with opened(url, handlers=[HandlerEntry("foreign", 3, (Route("order.*"),))]) as store:
        await record(store, arrival("foreign", type="order.new"))
    older.take()
    async with opened(url) as first:
        await first.register(SOURCES, [], ["foreign"])
    async with opened(url) as store:
        await record(store, arrival("before"))
        assert len((await lease(store)).jobs) == 1
        older.put_back()
        await record(store, arrival("after"))
        (job,) = (await lease(store, handlers=["credit", "notify"])).jobs
        assert (job.handler, job.event_id) == ("credit", "after")


@pytest.mark.parametrize("is_older", [False, True], ids=["missing", "with other rules"])
async def test_handlers_are_registered_again_with_their_rules(
    restore: Callable[[], tuple[str, Restore]], *, is_older: bool
) -> None:
    """The own handlers, and those of another process."""
    url, older = restore()
    routes = (Route("invoice.*"),)
    rules = QueueRules("id", False, 4, 0.6)  # noqa: FBT003
    own, other = HandlerEntry("own", 3, routes, rules), HandlerEntry("other", 3, routes, rules)
    if is_older:
        former = [HandlerEntry(name, 3, routes) for name in ("own", "other")]
        async with opened(url, handlers=former):
            pass
    older.take()
    async with opened(url, handlers=[own]) as store:
        async with opened(url, serving=False, handlers=[other]):
            pass
        await store.register(SOURCES, [own], [])  # learns of the other
        older.put_back()
        await record(store, arrival("after", body=b'{"id": "key"}'))
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT name, ordering_key, holds_key, concurrency, rate_interval_seconds"
            " FROM onceward.handlers ORDER BY name"
        ).fetchall()
        keys = connection.execute("SELECT ordering_key FROM onceward.jobs").fetchall()
    assert found == [("other", "id", False, 4, 0.6), ("own", "id", False, 4, 0.6)]
    assert keys == [("key",), ("key",)]


async def test_a_new_connection_to_the_same_database_changes_nothing(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_url) as store:
        await record(store, arrival())
        for _ in range(2):
            with psycopg.connect(postgres_url) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            await record(store, arrival())
    assert "went back" not in caplog.text


async def test_a_store_that_registers_nothing_can_use_the_ledger(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await record(store, arrival())
        beside = make_store(postgres_url)
        await beside.open(serving=False)
        assert len(await beside.events(EVERYTHING)) == 1
        await beside.close()


async def test_nothing_is_recorded_with_the_routes_of_a_ledger_that_was_restored_in_place(
    postgres_url: str,
) -> None:
    """A dump is loaded without ending the connections. The sources have other ids in it."""
    async with opened(postgres_url) as store:
        await record(store, arrival("evt_1"), arrival("evt_2"))
        await record(store, arrival("evt_2"))
        with psycopg.connect(postgres_url) as connection:
            connection.execute(
                "TRUNCATE onceward.routes, onceward.handlers, onceward.sources,"
                " onceward.events, onceward.jobs, onceward.payloads"
            )
            connection.execute(
                "INSERT INTO onceward.sources (id, name) OVERRIDING SYSTEM VALUE"
                " VALUES (1, 'another')"
            )
        for event_id in ("evt_1", "evt_3"):
            with suppress(OutcomeUnknown):
                await record(store, arrival(event_id))
        for event_id in ("evt_1", "evt_3"):
            await record(store, arrival(event_id))
            assert await handlers_of(store, event_id) == ["credit"]
        assert {event.source for event in await store.events(EVERYTHING)} == {"stripe"}


async def test_an_event_of_a_source_that_has_another_id_after_a_restore_is_no_duplicate(
    postgres_url: str,
) -> None:
    """The process remembers the event under the number that is now another source's."""
    async with opened(postgres_url) as store:
        await record(store, arrival("evt_1"))
        with psycopg.connect(postgres_url) as connection:
            connection.execute("UPDATE onceward.sources SET name = 'another' WHERE name = 'stripe'")
            connection.execute("TRUNCATE onceward.routes")  # gets another file, as by a restore
        with pytest.raises(OutcomeUnknown):
            await record(store, arrival("evt_1"))
        (receipt,) = await record(store, arrival("evt_1"))
        assert receipt.outcome is Outcome.RECORDED


RECONNECT = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def test_routes_from_before_their_last_renewal_are_renewed(postgres_url: str) -> None:
    """Another process would soon delete them."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        raw_db.rows("UPDATE onceward.routes SET seen_at = seen_at - interval '1 hour'")
        raw_db.rows(RECONNECT)
        await record(store, arrival())
    fresh = "SELECT count(*) FROM onceward.routes WHERE seen_at > now() - interval '1 minute'"
    assert raw_db.value(fresh) == 2


async def test_routes_of_a_retired_handler_are_not_registered_again(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        store._registration.set(SOURCES, [], ["credit"])  # type: ignore[attr-defined] # PostgreSQL's
        raw_db.rows("DELETE FROM onceward.routes")
        raw_db.rows(RECONNECT)
        await record(store, arrival())
        assert await handlers_of(store, "evt_1") == []
    assert raw_db.count("onceward.routes") == 1


def swap_names(raw_db: RawDatabase, table: str, first: str, second: str) -> None:
    for old, new in ((first, "other"), (second, first), ("other", second)):
        raw_db.rows(f"UPDATE onceward.{table} SET name = '{new}' WHERE name = '{old}'")  # noqa: S608 - no outside data


async def test_a_worker_claims_by_the_ids_of_a_ledger_that_has_the_same_routes(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, arrival())
        swap_names(raw_db, "handlers", "credit", "notify")
        ids = "(SELECT sum(id) FROM onceward.handlers)"
        raw_db.rows(f"UPDATE onceward.routes SET handler = {ids} - handler")  # noqa: S608 - no outside data
        raw_db.rows(RECONNECT)
        (job,) = (await lease(store, handlers=["notify"])).jobs
        assert job.handler == "notify"


async def test_events_are_recorded_by_the_ids_of_a_ledger_that_has_the_same_routes(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        swap_names(raw_db, "sources", *SOURCES)
        raw_db.rows(RECONNECT)
        await record(store, arrival(source="stripe"))
        (event,) = await store.events(EVERYTHING)
        assert event.source == "stripe"


async def test_a_claim_on_a_new_connection_finds_jobs_below_the_floors(postgres_url: str) -> None:
    """The floors are those of the ledger before a failover."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await claim(store)
        await record(store, arrival())
        raw_db.rows("UPDATE onceward.jobs SET available_at = now() - interval '1 hour'")
        assert (await claim(store)).lease is None
        raw_db.rows(RECONNECT)
        assert (await claim(store)).lease is not None


async def test_filters_are_registered_again_with_their_routes(
    restore: Callable[[], tuple[str, Restore]],
) -> None:
    url, older = restore()
    async with opened(url, handlers=[]):
        pass
    older.take()
    routes = (Route("invoice.*", None, '{"status":["paid"]}'),)
    async with opened(url, handlers=[HandlerEntry("paid", 3, routes)]) as store:
        await record(store, arrival("lost", body=b'{"status":"paid"}'))
        older.put_back()
        await record(store, arrival("open"), arrival("paid", body=b'{"status":"paid"}'))
        assert await handlers_of(store, "open") == []
        assert await handlers_of(store, "paid") == ["paid"]
