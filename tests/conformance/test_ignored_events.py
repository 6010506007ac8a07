"""Types of events that match no handler are logged once, with the pattern that may be meant."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

import onceward.service
from onceward import Event, Inbox
from onceward.model.jobs import Route, UnroutedType
from onceward.operate import ignored_watch
from onceward.operate.ignored_watch import IgnoredWatch, Subscription
from onceward.ports import Store
from onceward.service import Service
from support.database import RawDatabase
from support.postgres import Cluster
from support.processes import eventually_async
from tests.factories import arrival, arrivals, opened, record


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onceward.routing")


def reports(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what the watch logged."""
    return [entry for entry in caplog.records if entry.name == "onceward.routing"]


def types(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the reported types."""
    return [entry.__dict__["type"] for entry in reports(caplog)]


async def started_watch(
    store: Store, *patterns: str, source: str | None = "stripe", selectors: Sequence[str] = ()
) -> IgnoredWatch:
    label = "handler 'remember' (app.py:42)"
    routes = [Subscription("remember", label, Route(pattern, source)) for pattern in patterns]
    watch = IgnoredWatch(store, routes, {"stripe": selectors})
    await watch.start()
    return watch


async def test_the_types_of_unrouted_events_are_listed_by_their_newest_event(store: Store) -> None:
    receipts = await record(
        store,
        arrival("a", type="x"),
        arrival("b", type="y"),
        arrival("c"),  # a handler wants it
        arrival("d", type="x"),
        arrival("e", type="x", source="ingest"),
    )
    first, second, _, fourth, fifth = (receipt.event for receipt in receipts)
    x, y = UnroutedType("stripe", "x", fourth), UnroutedType("stripe", "y", second)
    other = UnroutedType("ingest", "x", fifth)
    assert await store.unrouted_types(0, limit=10) == [y, x, other]
    assert await store.unrouted_types(0, limit=2) == [x, other]
    assert await store.unrouted_types(second, limit=10) == [x, other]
    assert await store.unrouted_types(first, limit=10) == [y, x, other]
    assert await store.unrouted_types(fifth, limit=10) == []


async def test_a_type_is_reported_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    watch = await started_watch(store)
    for number in range(3):
        await record(store, arrival(f"evt_{number}", type="customer.deleted"))
        await watch.refresh()
    assert caplog.messages == [
        "source 'stripe': events of type 'customer.deleted' match no handler and end ignored"
    ]
    (entry,) = reports(caplog)
    assert entry.levelno == logging.INFO
    assert (entry.__dict__["source"], entry.__dict__["type"]) == ("stripe", "customer.deleted")


async def test_a_pattern_that_nearly_matches_is_a_warning_with_the_fix(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = await started_watch(store, "pull_request")
    await record(store, arrival(type="pull_request.opened"))
    await watch.refresh()
    (message,) = caplog.messages
    assert message == (
        "source 'stripe': events of type 'pull_request.opened' match no handler and end ignored; "
        'did you mean @inbox.on("pull_request.*", source="stripe") '
        "for handler 'remember' (app.py:42)?"
    )
    (entry,) = reports(caplog)
    assert (entry.levelno, entry.__dict__["handler"]) == (logging.WARNING, "remember")


async def test_events_recorded_before_the_start_are_not_reported(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await record(store, arrival("a", type="old"), arrival("b", type="older"))
    watch = await started_watch(store)
    await record(store, arrival("c", type="new"))
    await watch.refresh()
    assert types(caplog) == ["new"]


async def test_an_event_that_becomes_visible_late_is_reported(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    watch = await started_watch(store)
    hidden, _ = await record(store, arrival("a", type="late"), arrival("b", type="early"))
    raw_db.rows(f"UPDATE onceward.events SET routed = TRUE WHERE id = {hidden.event}")  # noqa: S608
    await watch.refresh()
    raw_db.rows(f"UPDATE onceward.events SET routed = FALSE WHERE id = {hidden.event}")  # noqa: S608
    await watch.refresh()
    assert types(caplog) == ["early", "late"]


async def test_an_event_recorded_before_its_route_was_known_is_no_mistake(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = await started_watch(store, "customer.*")
    await record(store, arrival(type="customer.new"))  # the store does not know this route
    await watch.refresh()
    assert reports(caplog) == []


async def test_the_number_of_reported_types_is_limited(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignored_watch, "MAX_TYPES", 3)
    watch = await started_watch(store)
    await record(store, *(arrival(f"evt_{number}", type=f"type{number}") for number in range(5)))
    await watch.refresh()
    await watch.refresh()
    assert len(caplog.records) == 4
    last = "3 types of events have matched no handler; no further types are logged"
    assert caplog.messages[-1] == last


async def test_a_type_cannot_forge_a_line(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    watch = await started_watch(store)
    await record(store, arrival(type="a\nERROR forged %s"))
    await watch.refresh()
    assert "of type 'a\\nERROR forged %s' match" in caplog.text


@pytest.mark.parametrize(
    ("selectors", "reads"),
    [
        (["json:type", "json:action"], "the type from json:type, which is absent"),
        ([], "no type"),
    ],
)
async def test_events_without_a_type_are_a_warning_with_the_selector(
    store: Store, caplog: pytest.LogCaptureFixture, selectors: list[str], reads: str
) -> None:
    watch = await started_watch(store, "payment", source=None, selectors=selectors)
    await record(store, arrival(type=""))
    await watch.refresh()
    (message,) = caplog.messages
    assert message == (
        "source 'stripe': events without a type match no handler and end ignored; "
        f"the source reads {reads}: set type= on the source, "
        'or write @inbox.on("*", source="stripe")'
    )
    assert reports(caplog)[0].levelno == logging.WARNING


async def test_events_without_a_type_of_another_process_have_no_selector(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = await started_watch(store, "payment", source="ingest")
    await record(store, arrival(type="", source="ingest"))
    await watch.refresh()
    assert caplog.messages[0].endswith('end ignored; write @inbox.on("*", source="ingest")')


async def test_a_type_that_is_spelled_otherwise_is_a_warning_with_both_fixes(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = await started_watch(store, "charge.paid")
    await record(store, arrival("a"), arrival("b", type="charge.payed"))
    await watch.refresh()
    (message,) = caplog.messages
    assert message == (
        "source 'stripe': events of type 'charge.payed' match no handler and end ignored; "
        "did you mean 'charge.paid' of handler 'remember' (app.py:42)? "
        'If the sender is right, write @inbox.on("charge.payed", source="stripe")'
    )
    assert reports(caplog)[0].levelno == logging.WARNING


@pytest.mark.parametrize("source", [None, "stripe"])
async def test_a_source_of_which_no_event_matches_is_a_warning_once(
    store: Store, caplog: pytest.LogCaptureFixture, source: str | None
) -> None:
    watch = await started_watch(store, "charge.paid", "refund.*", "charge.paid", source=source)
    await record(store, arrival("a", source="ingest"))  # of another source
    await record(store, arrival("b", type="customer.new"), arrival("c", type="customer.old"))
    await watch.refresh()
    assert caplog.messages[0] == (
        "source 'stripe': events of type 'customer.new' match no handler and end ignored; "
        "no recent event of this source matched one; the handlers want 'charge.paid', 'refund.*'"
    )
    assert [entry.levelname for entry in reports(caplog)] == ["WARNING", "INFO"]


async def test_the_warning_suggests_the_nearest_pattern_or_lists_some(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = await started_watch(store, *(f"kind{number}.made" for number in range(12)))
    await record(store, arrival("a", type="customer.new"))
    await watch.refresh()
    assert caplog.messages[0].endswith("'kind8.made', 'kind9.made' and 2 more")
    watch = await started_watch(store, "charge.succeeded", "refund.*")
    await record(store, arrival("b", type="charge.success"))
    await watch.refresh()
    assert caplog.messages[1].endswith(" matched one; did you mean 'charge.succeeded'?")


async def test_a_source_of_which_an_event_matched_is_no_mistake(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await record(store, arrival("a"))  # before the start
    watch = await started_watch(store, "invoice.paid")
    await record(store, arrival("b", type="customer.new"))
    await watch.refresh()
    assert [entry.levelname for entry in reports(caplog)] == ["INFO"]


async def test_a_source_without_handlers_is_no_mistake(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = await started_watch(store, "invoice.paid", source="github")
    await record(store, arrival("a", type="customer.new"), arrival("b", type=""))
    await watch.refresh()
    assert [entry.levelname for entry in reports(caplog)] == ["INFO", "INFO"]


async def test_the_sources_of_routed_events_are_those_of_the_newest(store: Store) -> None:
    assert await store.routed_sources(limit=10) == frozenset()
    await record(store, arrival("a"), arrival("b", source="ingest"), arrival("c", type="x"))
    assert await store.routed_sources(limit=10) == {"stripe", "ingest"}
    assert await store.routed_sources(limit=2) == {"ingest"}


async def test_a_watch_waits_for_the_end_of_an_outage(
    postgres_cluster: Cluster, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_url) as store:
        watch = await started_watch(store)
        await record(store, arrival(type="x"))
        postgres_cluster.crash()
        await watch.refresh()  # raises nothing
        assert reports(caplog) == []
        postgres_cluster.start()

        async def is_reported() -> bool:
            await watch.refresh()
            return bool(reports(caplog))

        await eventually_async(is_reported, "the type is reported after the outage")


@asynccontextmanager
async def recording_service(url: str, *, receives: bool) -> AsyncIterator[Service]:
    """Open a service whose handler nearly matches the event that is recorded."""
    inbox = Inbox()
    inbox.on("invoice", name="remember")(remember)
    service = inbox.service({"database_url": url}, dev=True)
    await service.open()
    if receives:
        service.receive_app()
    await record(service.store, arrival(source="ingest"))
    yield service
    await service.close()


async def remember(event: Event[object]) -> None: ...


@pytest.fixture
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onceward.service, "IGNORED_INTERVAL_SECONDS", 0.02)


@pytest.mark.usefixtures("_short_interval")
async def test_a_process_that_receives_reports_while_it_runs(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_reported() -> bool:
        return bool(reports(caplog))

    async with recording_service(database_url, receives=True):
        await eventually_async(is_reported, "the type is reported")
    line = remember.__code__.co_firstlineno
    (entry,) = reports(caplog)
    assert entry.getMessage() == (
        "source 'ingest': events of type 'invoice.paid' match no handler and end ignored; "
        "did you mean @inbox.on(\"invoice.*\") for handler 'remember' "
        f"(tests/conformance/test_ignored_events.py:{line})?"
    )


@pytest.mark.usefixtures("_short_interval")
async def test_a_process_that_only_works_reports_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with recording_service(database_url, receives=False):
        await asyncio.sleep(0.1)  # several intervals
    assert reports(caplog) == []


async def test_one_read_looks_at_a_limited_number_of_events(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignored_watch, "READ_EVENTS", 10)
    watch = await started_watch(store)
    await record(store, arrival("old", type="missed"), *arrivals(10, type="flood"))
    await watch.refresh()
    assert types(caplog) == ["flood"]
