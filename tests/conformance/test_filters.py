"""Filters decide when an event is recorded, in whichever process."""

import json
from itertools import product
from typing import Any, NamedTuple

import pytest

from onceward import Event, Transaction
from onceward.errors import OutcomeUnknown, StoreBlocked, Unwritable
from onceward.model.admin import PageQuery
from onceward.model.events import Arrival, DuplicateBody, ProcessingState
from onceward.model.jobs import HandlerEntry, QueueRules, Route
from onceward.ports import Store
from onceward.store import payload_routes, registration
from onceward.store.postgres import recording
from onceward.store.queries import Queries
from onceward.store.sqlite.store import SqliteStore
from onceward.work.definition.filters import make_filter
from support.database import RawDatabase
from tests.conformance.test_batching import lease_jobs, make_runner, outcome
from tests.conformance.test_ordering_keys import ACTS, keys, keys_of_next_event
from tests.factories import (
    ACT,
    ANY_NUMBER,
    CREDIT,
    EVERYTHING,
    SOURCES,
    arrival,
    checked,
    lease,
    opened,
    record,
)

PAID = {"status": "paid"}


def filtered(name: str, when: dict[str, Any] | None, *routes: Route, **rules: Any) -> HandlerEntry:
    text = make_filter({"when": when})
    given = routes or (Route("invoice.*"),)
    return HandlerEntry(
        name,
        3,
        tuple(Route(route.pattern, route.source, text) for route in given),
        QueueRules(**rules),
    )


def invoice(event_id: str, document: object, **fields: Any) -> Arrival:
    return arrival(event_id, body=json.dumps(document).encode(), **fields)


def jobs(raw_db: RawDatabase) -> set[tuple[str, str]]:
    """Return the event and the handler of each job."""
    return set(keys(raw_db))


async def states(store: Store) -> dict[str, ProcessingState]:
    return {item.event_id: item.processing_state for item in await store.events(EVERYTHING)}


async def test_only_matching_events_get_a_job(store: Store, raw_db: RawDatabase) -> None:
    handlers = [
        filtered("paid", PAID),
        filtered("large", {"amount": [100, 200], "status": "paid"}),
        filtered("anything", None),
        filtered("stripe", {"status": "sent"}, Route("*", "stripe")),
    ]
    await store.register(SOURCES, handlers, ["credit", "notify"])
    await record(
        store,
        invoice("a", {"status": "paid", "amount": 100}),
        invoice("b", {"status": "paid", "amount": "100"}),
        invoice("c", {"status": "open"}),
        invoice("d", {"status": "sent"}, type="order.new"),
        invoice("e", {"payload": {"status": "sent"}}, type="order.new", source="ingest"),
        invoice("f", {"status": "paid"}, type="order.new"),
    )
    assert jobs(raw_db) == {
        ("a", "paid"), ("a", "large"), ("a", "anything"),
        ("b", "paid"), ("b", "anything"),
        ("c", "anything"),
        ("d", "stripe"),
    }  # fmt: skip
    rows = raw_db.rows("SELECT event_id, final_state FROM onceward.events ORDER BY id")
    assert rows == [
        ("a", None),
        ("b", None),
        ("c", None),
        ("d", None),
        ("e", None),
        ("f", "ignored"),
    ]


async def test_an_event_that_no_filter_lets_pass_is_ignored_and_not_unknown(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.register(SOURCES, [filtered("paid", PAID)], ["credit", "notify"])
    await record(store, invoice("open", {"status": "open"}), invoice("paid", PAID))
    await record(store, invoice("other", PAID, type="unknown"))
    ignored = ProcessingState.IGNORED
    assert await states(store) == {
        "open": ignored, "other": ignored, "paid": ProcessingState.PENDING,
    }  # fmt: skip
    listed = await store.events(PageQuery(limit=9, status="ignored"))
    assert [(item.event_id, item.type_wanted) for item in listed] == [
        ("other", False), ("open", True),
    ]  # fmt: skip
    assert [each.type for each in await store.unrouted_types(0, limit=9)] == ["unknown"]
    assert raw_db.count("onceward.payloads") == 3


async def test_a_value_of_another_kind_is_reported_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = [filtered("number", {"status": 5}), filtered("text", PAID)]
    await store.register(SOURCES, handlers, ["credit", "notify"])
    await record(store, invoice("a", {"status": "5"}), invoice("b", {"status": "6"}))
    (line,) = caplog.messages
    assert line == (
        "source 'stripe': an event of type 'invoice.paid' has a text at 'status', and the filter "
        "`when status is 5` has a number, so that it rejects the event; nothing is converted: "
        "change the value in the filter"
    )


async def test_a_null_is_no_value_of_another_kind(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.register(SOURCES, [filtered("text", PAID)], ["credit", "notify"])
    await record(store, invoice("a", {"status": None}))
    assert not caplog.messages


async def test_a_path_that_leads_nowhere_is_reported_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = [filtered("wrong", {"payload.status": "paid"}), filtered("right", PAID)]
    await store.register(SOURCES, handlers, ["credit", "notify"])
    await record(store, arrival("a", body=b"{"))
    assert "nothing at" not in caplog.text
    await record(store, invoice("b", {"status": "open"}), invoice("c", {"status": "paid"}))
    await record(store, invoice("d", {}))
    (line,) = [each for each in caplog.messages if "nothing at" in each]
    assert line == (
        "source 'stripe': an event of type 'invoice.paid' has nothing at 'payload.status', so that "
        "the filter `when payload.status is 'paid'` rejects it; compare the path with the payload"
    )


async def test_a_payload_that_cannot_be_decoded_gets_its_job(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.register(SOURCES, [filtered("paid", PAID)], ["credit"])
    await record(store, arrival("broken", body=b'{"status": "paid"'), arrival("null", body=b"null"))
    assert jobs(raw_db) == {("broken", "paid")}


async def test_only_a_routed_job_was_routed(store: Store) -> None:
    await store.register(SOURCES, [filtered("paid", PAID), filtered("all", None)], [])
    await record(store, invoice("open", {"status": "open"}))
    (item,) = await store.events(EVERYTHING)
    routed = await store.route_event(int(item.id), "paid", ACT)
    assert routed is not None
    recorded = next(each for each in await store.jobs(EVERYTHING) if each.handler == "all")
    assert await store.was_routed(int(routed.job))
    assert not await store.was_routed(int(recorded.id))
    assert not await store.was_routed(ANY_NUMBER)


async def test_two_versions_of_a_handler_get_the_union(
    database_url: str, raw_db: RawDatabase
) -> None:
    sent = filtered("later", {"status": "sent"})
    async with (
        opened(database_url, handlers=[filtered("later", PAID)]) as old,
        opened(database_url, serving=False, handlers=[sent]) as new,
    ):
        for number, store in enumerate((old, new)):
            for status in ("paid", "sent", "open"):
                await record(store, invoice(f"{status} {number}", {"status": status}))
        both = filtered("later", {"status": ["sent", "paid"]})
        await new.register(SOURCES, [both], [])
        await record(old, invoice("paid 2", PAID))  # passes two filters, and gets one job
    events = {"paid 0", "sent 0", "paid 1", "sent 1", "paid 2"}
    assert jobs(raw_db) == {(event, "later") for event in events}


class Change(NamedTuple):
    """The handlers of a receiver, those of another process, and who gets the next event."""

    before: list[HandlerEntry]
    after: list[HandlerEntry]
    handlers: set[str]


# The body of the next event is {"a": "key a", "b": "key b"}.
WANTED, UNWANTED = {"a": "key a"}, {"a": "another"}
CHANGES = {
    "new handler that wants it": Change([], [filtered("later", WANTED)], {"later"}),
    "new handler that does not": Change([], [filtered("later", UNWANTED)], set()),
    "new filter that lets it pass": Change(
        [filtered("later", UNWANTED)], [filtered("later", WANTED)], {"later"}
    ),
    "new filter that does not": Change(
        [filtered("other", WANTED)], [filtered("later", UNWANTED)], {"other"}
    ),
    "no filter": Change([filtered("later", UNWANTED)], [filtered("later", None)], {"later"}),
    "known filter, new route": Change(
        [filtered("later", WANTED, Route("order.*"))],
        [filtered("later", WANTED, Route("invoice.*", "stripe"))],
        {"later"},
    ),
    "filter and key": Change(
        [filtered("later", UNWANTED, ordering_key="a")],
        [filtered("later", WANTED, ordering_key="b")],
        {"later"},
    ),
    "key without a filter": Change(
        [filtered("first", WANTED)], [filtered("later", None, ordering_key="b")], {"first", "later"}
    ),
}


async def test_an_old_receiver_neither_drops_nor_creates_a_job_wrongly(
    database_url: str, subtests: pytest.Subtests
) -> None:
    for act, (name, (before, after, expected)) in product(ACTS, CHANGES.items()):
        with subtests.test(case := f"{act.__name__}, {name}"):
            found = await keys_of_next_event(database_url, case, act, before, after)
            assert found.keys() == expected
            if "later" in found and after[0].rules.ordering_key:
                assert found["later"] == "key b"


async def test_nothing_is_recorded_by_a_receiver_that_cannot_learn_a_filter(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        opened(postgres_url, handlers=[filtered("known", PAID)]) as receiver,
        opened(postgres_url, serving=False, handlers=[filtered("later", {"status": "sent"})]),
    ):
        monkeypatch.setattr(recording, "_MAX_RELOADS", 0)
        with pytest.raises(OutcomeUnknown):
            await record(receiver, invoice("new", PAID), invoice("x", PAID, type="order.new"))
        assert await receiver.events(EVERYTHING) == []
        monkeypatch.undo()
        await record(receiver, invoice("new", PAID))
    assert jobs(RawDatabase(postgres_url)) == {("new", "known")}


async def test_the_promise_is_broken_by_a_receiver_that_ignores_what_it_does_not_know(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard the test of old receivers: without the check in the statement, it would find them."""
    text = Queries("postgres")._texts["record_new"]
    broken = text.replace("WHERE filter <> ''", "WHERE false")
    assert broken != text
    async with (
        opened(postgres_url, handlers=[filtered("known", PAID)]) as receiver,
        opened(postgres_url, serving=False, handlers=[filtered("later", {"status": "sent"})]),
    ):
        monkeypatch.setitem(receiver._queries._texts, "record_new", broken)  # type: ignore[attr-defined]
        await record(receiver, invoice("new", {"status": "sent"}))
    assert jobs(RawDatabase(postgres_url)) == set()


async def test_a_filter_that_cannot_be_read_blocks_recording(store: Store) -> None:
    entry = HandlerEntry("future", 3, (Route("invoice.*", None, "$.status == 'paid'"),))
    await store.register(SOURCES, [entry], ["credit"])
    with pytest.raises(StoreBlocked, match="a newer version registered it"):
        await record(store, invoice("new", PAID))
    assert await store.events(EVERYTHING) == []
    with pytest.raises(Unwritable, match="a newer version registered it"):  # one of them
        await record(store, invoice("new", PAID), invoice("x", PAID, type="order.new"))
    await record(store, invoice("x", PAID, type="order.new"))


async def test_filters_cost_no_further_statement_and_nothing_without_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, columns = recording._run_with_retries, []

    async def note(*arguments: Any) -> Any:
        columns.append(arguments[2])
        return await run(*arguments)

    def fail(*_: object) -> None:
        raise AssertionError("a payload was read for nothing")

    async with opened(postgres_url, handlers=[filtered("paid", PAID)]) as store:
        monkeypatch.setattr(recording, "_run_with_retries", note)
        await record(store, invoice("first", PAID), invoice("second", {}))
        await store.register(SOURCES, [CREDIT], ["paid"])
        monkeypatch.setattr(payload_routes, "read_document", fail)
        await record(store, invoice("third", PAID))
    assert ["verdicts" in each for each in columns] == [True, False]


async def test_a_held_event_is_filtered_too(store: Store, raw_db: RawDatabase) -> None:
    await store.register(SOURCES, [filtered("paid", PAID)], ["credit"])
    for event_id, body in ("a", b"{}"), ("b", b"{}"), ("c", b'{"status":"paid"}'):
        await record(store, checked(event_id, DuplicateBody.HELD, body=body))
    await record(store, checked("d", DuplicateBody.HELD, body=b'{"status":"paid"}'))
    rows = raw_db.rows(
        "SELECT e.event_id, j.status, e.final_state FROM onceward.events e "
        "LEFT JOIN onceward.jobs j ON j.event = e.id ORDER BY e.id"
    )
    assert rows == [
        ("a", None, "ignored"),
        ("b", None, "ignored"),
        ("c", "queued", None),
        ("d", "failed", None),
    ]


async def test_routes_with_filters_are_renewed_restored_and_dropped(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filters() -> list[str]:
        rows = raw_db.rows("SELECT filter FROM onceward.routes ORDER BY filter")
        return [text for (text,) in rows]

    await store.register(SOURCES, [filtered("paid", PAID)], ["credit", "notify"])
    await store.register(SOURCES, [filtered("paid", PAID)], ["credit", "notify"])
    assert filters() == ['{"status":["paid"]}']
    monkeypatch.setattr(registration, "STALE_ROUTE_SECONDS", 0.0)
    sent = filtered("paid", {"status": "sent"})
    await store.register(SOURCES, [sent], ["credit", "notify"])
    await store.register(SOURCES, [sent], ["credit", "notify"])
    assert filters() == ['{"status":["sent"]}']
    (item,) = [item for item in await store.handlers(EVERYTHING) if item.name == "paid"]
    assert [(route.pattern, route.source, route.when) for route in item.routes] == [
        ("invoice.*", None, '{"status":["sent"]}')
    ]
    await store.register(SOURCES, [], ["paid"])
    assert filters() == []


async def test_the_filters_for_a_job_are_those_of_its_handler_source_and_type(
    store: Store,
) -> None:
    versions = [
        filtered("credit", {"n": 1}, Route("invoice.*")),
        filtered("credit", {"n": 2}, Route("invoice.paid", "stripe")),
        filtered("credit", None, Route("*", "stripe")),
        filtered("credit", {"n": 3}, Route("invoice.paid", "ingest")),
        filtered("credit", {"n": 4}, Route("invoice.sent")),
        filtered("credit", {"n": 5}, Route("invoice.p")),
        filtered("notify", {"n": 6}, Route("invoice.paid")),
    ]
    for version in versions:  # the routes of earlier ones stay for a while
        await store.register(SOURCES, [version], [])
    await record(store, invoice("a", {}))
    (job,) = (await lease(store)).jobs
    assert (job.handler, job.source, job.type) == ("credit", "stripe", "invoice.paid")
    wanted = [make_filter({"when": when}) for when in ({"n": 1}, {"n": 2}, None)]
    if isinstance(store, SqliteStore):  # no other process serves the file
        wanted = []
    assert sorted(await store.filters_for(job)) == sorted(wanted)


async def test_a_job_that_the_filter_does_not_want_runs_no_handler_in_a_batch(
    store: Store,
) -> None:
    """As one that an older receiver recorded, which knew no filter. It ends alone."""
    for event_id, status in (("a", "paid"), ("b", "open"), ("c", "paid")):
        await record(store, arrival(event_id, body=b'{"status": "%s"}' % status.encode()))
    a, b, c = await lease_jobs(store, limit=3)
    ran: list[str] = []

    async def note(event: Event[Any], tx: Transaction) -> None:
        ran.append(event.id)

    runner = make_runner(store, note, when={"status": "paid"})
    ended = await runner.run_batch([a, b, c])
    ended = outcome(ended.settled, ended.retry_alone, ended.remaining)
    assert ended == outcome(retry_alone=[b], remaining=[a, c])
    assert ran == ["a"]
