"""Each handler with a matching route gets a job, whichever process received the event."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Final

import pytest

from onceward import Inbox, service
from onceward.model.admin import PageQuery
from onceward.model.events import ProcessingState
from onceward.model.jobs import HandlerEntry, QueueRules, Route
from onceward.ports import Store
from onceward.store import registration
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import (
    CREDIT,
    EVERYTHING,
    HANDLERS,
    SOURCES,
    arrival,
    arrivals,
    lease,
    opened,
    record,
)
from tests.inprocess import receive_only


async def handlers_of(
    store: Store, type: str, *routes: Route, source: str = "stripe", name: str = "wanting"
) -> list[str]:
    """Record an event while only one handler has routes; return the handlers that got a job."""
    await store.register(SOURCES, [HandlerEntry(name, 3, routes)], ["credit", "notify"])
    await record(store, arrival(f"event of {name}", type=type, source=source))
    await store.register(SOURCES, [], [name])
    items = await store.jobs(EVERYTHING)
    return sorted(each.handler for each in items if each.external_event_id == f"event of {name}")


PATTERNS: Final = (
    ("invoice.paid", "invoice.paid", True),
    ("invoice.paid", "invoice.paid.late", False),
    ("invoice.paid", "Invoice.paid", False),
    ("invoice.*", "invoice.paid", True),
    ("invoice.*", "invoice.paid.late", True),
    ("invoice.*", "invoice.", True),
    ("invoice.*", "invoice", False),
    ("invoice.*", "invoices.x", False),
    ("invoice.*", "INVOICE.paid", False),
    ("*", "invoice.paid", True),
    ("*", "%", True),
    ("a_b.*", "axb.c", False),
    ("a%.*", "abc.d", False),
    ("commande.é*", "commande.été", True),
    ("commande.été", "commande.éte", False),
)


async def test_a_pattern_matches_exactly_or_by_prefix(
    store: Store, subtests: pytest.Subtests
) -> None:
    for pattern, event_type, matches in PATTERNS:
        with subtests.test(name := f"{pattern} and {event_type}"):
            found = await handlers_of(store, event_type, Route(pattern), name=name)
            assert found == [name] * matches


@pytest.mark.parametrize(("source", "matches"), [("stripe", True), ("ingest", False)])
async def test_a_route_of_one_source_does_not_match_another(
    store: Store, source: str, *, matches: bool
) -> None:
    routes = Route("invoice.*", "stripe"), Route("order.*", "ingest")
    assert await handlers_of(store, "invoice.paid", *routes, source=source) == (
        ["wanting"] * matches
    )


async def test_overlapping_routes_make_one_job(store: Store) -> None:
    routes = Route("invoice.paid"), Route("invoice.*"), Route("*"), Route("*", "stripe")
    assert await handlers_of(store, "invoice.paid", *routes) == ["wanting"]


async def test_each_matching_handler_gets_a_job(store: Store) -> None:
    everything = HandlerEntry("everything", 9, (Route("*"),))
    await store.register(SOURCES, [everything], [])
    await record(store, arrival("a"), arrival("b", type="order.new"), arrival("c", type="x"))
    jobs = [(item.external_event_id, item.handler) for item in await store.jobs(EVERYTHING)]
    assert sorted(jobs) == [
        ("a", "credit"), ("a", "everything"), ("b", "everything"), ("b", "notify"),
        ("c", "everything"),
    ]  # fmt: skip
    attempts = {item.handler: item.max_attempts for item in await store.jobs(EVERYTHING)}
    assert attempts == {"credit": 3, "notify": 5, "everything": 9}


async def test_an_event_without_a_matching_route_is_ignored(store: Store) -> None:
    await record(store, arrival("a", type="customer.deleted"), arrival("b"))
    (ignored,) = await store.events(PageQuery(limit=10, status=ProcessingState.IGNORED))
    assert (ignored.event_id, ignored.processed_at) == ("a", None)
    assert [item.external_event_id for item in await store.jobs(EVERYTHING)] == ["b"]


async def test_a_redelivery_makes_no_second_job(store: Store) -> None:
    await record(store, arrival())
    await record(store, arrival(), arrival(body=b"other"))
    assert len(await store.jobs(EVERYTHING)) == 1


async def test_a_receiver_creates_jobs_for_handlers_deployed_later(
    database_url: str,
) -> None:
    later = HandlerEntry("later", 3, (Route("customer.*"),))
    async with opened(database_url) as older:
        await record(older, arrival("before", type="customer.new"))
        async with opened(database_url, serving=False, handlers=[later]) as newer:
            await record(older, arrival("after", type="customer.new"))
            (job,) = (await lease(newer, handlers=["later"])).jobs
            assert job.event_id == "after"


async def test_a_retired_handler_keeps_its_jobs_and_gets_no_more(store: Store) -> None:
    await record(store, arrival("before"))
    assert await store.register(SOURCES, [], ["credit"]) == ["notify"]
    await record(store, arrival("after"))
    (item,) = await store.jobs(EVERYTHING)
    assert (item.external_event_id, item.handler) == ("before", "credit")
    assert len((await lease(store)).jobs) == 1


CHANGED = HandlerEntry("credit", 7, (Route("invoice.voided"),))


async def test_events_wanted_by_either_version_of_a_handler_become_jobs(
    store: Store,
) -> None:
    assert await store.register(SOURCES, [CHANGED], []) == ["credit", "notify"]
    await record(store, arrival("a"), arrival("b", type="invoice.voided"))
    items = await store.jobs(EVERYTHING)
    assert {(item.external_event_id, item.max_attempts) for item in items} == {("a", 7), ("b", 7)}


async def renew_for(store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew a changed handler for as long as it takes until the routes of others are stale."""
    monkeypatch.setattr(registration, "STALE_ROUTE_SECONDS", 0.2)
    await store.register(SOURCES, [CHANGED], [])
    raw_db.rows(f"UPDATE onceward.routes SET seen_at = {raw_db.past}")  # noqa: S608 - no outside data
    await asyncio.sleep(0.3)
    await store.register(SOURCES, [CHANGED], [])


async def test_routes_that_no_process_renews_are_deleted(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await renew_for(store, raw_db, monkeypatch)
    await record(store, arrival("a"), arrival("b", type="invoice.voided"))
    (item,) = await store.jobs(EVERYTHING)
    assert item.external_event_id == "b"


@pytest.mark.parametrize(("minutes", "is_kept"), [(9, True), (11, False)])
async def test_a_route_lasts_ten_minutes_without_a_renewal(
    store: Store, raw_db: RawDatabase, minutes: int, *, is_kept: bool
) -> None:
    registered = store._registration  # type: ignore[attr-defined] # both stores have one
    await store.register(SOURCES, [CHANGED], [])
    registered._renewing_since -= timedelta(hours=1)  # long enough to judge others
    age_routes(raw_db, minutes)
    await store.register(SOURCES, [CHANGED], [])
    other = arrival("c", type="order.new")  # of a handler that this process does not have
    await record(store, arrival("a"), arrival("b", type="invoice.voided"), other)
    events = {item.external_event_id for item in await store.jobs(EVERYTHING)}
    assert events == ({"a", "b", "c"} if is_kept else {"b", "c"})


async def test_a_process_judges_nobody_after_the_clock_was_set_back(
    store: Store, raw_db: RawDatabase
) -> None:
    registered = store._registration  # type: ignore[attr-defined] # both stores have one
    await store.register(SOURCES, [CHANGED], [])
    registered._renewing_since -= timedelta(hours=1)
    registered._known.at += timedelta(hours=1)
    age_routes(raw_db, 11)
    await store.register(SOURCES, [CHANGED], [])
    await record(store, arrival("a"))
    assert len(await store.jobs(EVERYTHING)) == 1


async def test_a_service_renews_its_routes(
    database_url: str, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "REGISTER_INTERVAL_SECONDS", 0.05)
    inbox = Inbox()

    @inbox.on("a")
    async def handle() -> None: ...

    stale = f"SELECT count(*) FROM onceward.routes WHERE seen_at = {raw_db.past}"  # noqa: S608 - no outside data
    async with receive_only(inbox, database_url):
        raw_db.rows(f"UPDATE onceward.routes SET seen_at = {raw_db.past}")  # noqa: S608 - no outside data

        async def is_renewed() -> bool:
            return not raw_db.value(stale)

        await eventually_async(is_renewed, "the route is renewed")


def age_routes(raw_db: RawDatabase, minutes: int) -> None:
    shift = minutes * 60_000_000 if raw_db.is_sqlite else f"interval '{minutes} minutes'"
    raw_db.rows(f"UPDATE onceward.routes SET seen_at = seen_at - {shift}")  # noqa: S608 - no outside data


async def test_routes_outlive_an_outage_in_which_nobody_could_renew_them(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process to come back must not judge the others."""
    monkeypatch.setattr(registration, "RENEWAL_GAP_SECONDS", 0.2)
    await renew_for(store, raw_db, monkeypatch)  # its own pause was too long
    await record(store, arrival("a"), arrival("b", type="invoice.voided"))
    assert len(await store.jobs(EVERYTHING)) == 2


async def test_a_process_that_has_just_started_deletes_no_routes(
    store: Store, database_url: str, raw_db: RawDatabase
) -> None:
    raw_db.rows(f"UPDATE onceward.routes SET seen_at = {raw_db.past}")  # noqa: S608 - no outside data
    async with opened(database_url, serving=False, handlers=[CHANGED]):
        await record(store, arrival("a"), arrival("b", type="invoice.voided"))
    assert len(await store.jobs(EVERYTHING)) == 2


async def test_a_renewed_route_outlives_the_registration_of_another_version(
    store: Store, raw_db: RawDatabase
) -> None:
    for version in (CREDIT, CHANGED):
        age_routes(raw_db, 6)
        await store.register(SOURCES, [version], [])
    await record(store, arrival("a"))
    (item,) = await store.jobs(EVERYTHING)
    assert item.handler == "credit"


async def test_a_handler_that_no_process_has_keeps_its_routes(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.rows(f"UPDATE onceward.routes SET seen_at = {raw_db.past}")  # noqa: S608 - no outside data
    await store.register(SOURCES, [HandlerEntry("notify", 3, (Route("order.*"),))], [])
    await record(store, arrival("a"))
    (item,) = await store.jobs(EVERYTHING)
    assert item.handler == "credit"


async def test_registering_twice_changes_nothing(database_url: str, raw_db: RawDatabase) -> None:
    async with opened(database_url):
        pass
    async with opened(database_url):
        pass
    tables = ("onceward.sources", "onceward.handlers", "onceward.routes")
    assert [raw_db.count(table) for table in tables] == [2, 2, 2]


@pytest.mark.parametrize("table", ["sources", "handlers"])
async def test_registering_again_uses_up_no_ids(
    database_url: str, raw_db: RawDatabase, table: str
) -> None:
    for _ in range(20):
        async with opened(database_url):
            pass
    more = HandlerEntry("more", 3, (Route("more.*", "later"),))
    async with opened(database_url, sources=[*SOURCES, "later"], handlers=[*HANDLERS, more]):
        assert raw_db.value(f"SELECT max(id) FROM onceward.{table}") == 3  # noqa: S608 - no outside data


RULES = QueueRules("data.id", False, 4, 0.6)  # noqa: FBT003


OPTIONS = "name, max_attempts, ordering_key, holds_key, concurrency, rate_interval_seconds"


def options(raw_db: RawDatabase) -> dict[str, tuple[object, ...]]:
    rows = raw_db.rows(f"SELECT {OPTIONS} FROM onceward.handlers")  # noqa: S608 - no outside data
    return {name: tuple(values) for name, *values in rows}


async def test_the_rules_of_a_handler_are_stored_and_changed(
    store: Store, raw_db: RawDatabase
) -> None:
    assert options(raw_db)["credit"] == (3, None, True, None, None)
    ids = raw_db.rows("SELECT id FROM onceward.handlers ORDER BY id")
    await store.register(SOURCES, [HandlerEntry("credit", 4, CREDIT.routes, RULES)], [])
    assert options(raw_db)["credit"] == (4, "data.id", False, 4, 0.6)
    assert options(raw_db)["notify"] == (5, None, True, None, None)
    await store.register(SOURCES, HANDLERS, [])
    assert options(raw_db)["credit"] == (3, None, True, None, None)
    assert raw_db.rows("SELECT id FROM onceward.handlers ORDER BY id") == ids


async def test_a_new_handler_is_stored_with_its_rules(store: Store, raw_db: RawDatabase) -> None:
    await store.register(SOURCES, [HandlerEntry("more", 9, (), RULES)], [])
    assert options(raw_db)["more"] == (9, "data.id", False, 4, 0.6)


async def test_a_handler_is_written_only_if_its_rules_change(postgres_url: str) -> None:
    """A write would leave a dead row each minute."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url, handlers=[HandlerEntry("credit", 3, (), RULES)]) as store:
        before = raw_db.value("SELECT xmin::text FROM onceward.handlers")
        await store.register(SOURCES, [HandlerEntry("credit", 3, (), RULES)], [])
    assert raw_db.value("SELECT xmin::text FROM onceward.handlers") == before


async def test_each_event_of_a_batch_gets_the_jobs_of_its_type(store: Store) -> None:
    await store.record([*arrivals(30), *arrivals(20, type="order.new", prefix="o")])
    counts = Counter(item.handler for item in await store.jobs(EVERYTHING))
    assert counts == {"credit": 30, "notify": 20}
