"""The lists of the admin API: newest first, in pages that miss nothing."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final

import pytest

from onceward.model.admin import DeliveryItem, EventItem, JobItem, PageQuery
from onceward.model.events import Outcome, ProcessingState
from onceward.model.jobs import Fail, FailureType, HandlerEntry, JobStatus, Lease, Reschedule, Route
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import ACT, EVERYTHING, SOURCES, arrival, lease, record, working

LISTS = ("events", "jobs", "effects", "deliveries", "audit")
EVENTS = 40
REVIEWED = 7
"""The numbers of the events whose source keeps unknown types for review, modulo 8."""


async def listed(store: Store, kind: str, **filters: Any) -> list[Any]:
    items: list[Any] = await getattr(store, kind)(PageQuery(**{"limit": 1000, **filters}))
    return items


async def walk(store: Store, kind: str, limit: int, **filters: Any) -> list[Any]:
    """Return all items, page by page."""
    items: list[Any] = []
    while True:
        after = int(items[-1].id) if items else None
        page = await listed(store, kind, limit=limit, after=after, **filters)
        assert len(page) <= limit
        if not page:
            return items
        items += page


@pytest.fixture
async def mixed(store: Store, raw_db: RawDatabase) -> Store:
    """Fill a store with events and jobs in every state, at random."""
    chance = random.Random(11)  # noqa: S311 - any mix, the same each time
    everything = HandlerEntry("everything", 2, (Route("order.*"), Route("invoice.*")))
    await store.register(SOURCES, [everything], [])
    await record(store, *(_random_arrival(chance, number) for number in range(EVENTS)))
    await record(store, *(_random_arrival(chance, chance.randrange(EVENTS)) for _ in range(30)))
    for solo in (False, True):
        leased = await lease(store, handlers=["credit", "notify", "everything"], limit=100)
        for job in leased.jobs:
            await _settle_at_random(store, chance, leased, job.id)
        await store.end_leases([leased.token] if not solo else [])
        raw_db.make_due()
    await _cancel_some(raw_db)
    return store


def _random_arrival(chance: random.Random, number: int) -> Any:
    return arrival(
        f"evt_{number}",
        source=SOURCES[number % 2],
        type=("invoice.paid", "order.new", "invoice.late", "unwanted")[number % 4],
        reference=f"cus_{number % 5}" if number % 3 else None,
        body=chance.choice([b"{}", b"[]"]),
    )._replace(reviewed=number % 8 == REVIEWED)


async def _settle_at_random(store: Store, chance: random.Random, leased: Lease, job: int) -> None:
    outcome = chance.choice(["done", "effect", "retry", "fail", "fail and requeue", "leave"])
    if outcome == "done":
        await store.settle_done(leased.token, job)
    elif outcome == "effect":
        async with working(store) as work:
            await work.effects(job).once(f"key:{job}", reference=f"cus_{job % 5}")
            await work.unit.settle(leased.token, job)
    elif outcome == "retry":
        await store.settle_error(leased.token, job, Reschedule(0.0, "again"), 0.1)
    elif outcome != "leave":
        failure = chance.choice([kind for kind in FailureType if kind is not FailureType.FILTERED])
        await store.settle_error(leased.token, job, Fail(failure, "no"), 0.1)
        if outcome == "fail and requeue":
            await store.requeue(job, ACT)


async def _cancel_some(raw_db: RawDatabase) -> None:
    raw_db.rows(
        "UPDATE onceward.jobs SET status = 'cancelled', finished_at = available_at "
        "WHERE status = 'queued' AND id % 3 = 0"
    )
    raw_db.rows(
        "UPDATE onceward.jobs SET status = 'ignored', finished_at = available_at "
        "WHERE status = 'queued' AND id % 3 = 1 AND id % 2 = 0"
    )


async def test_the_mix_has_every_state(mixed: Store) -> None:
    """Guard the tests below against empty lists."""
    assert {item.status for item in await mixed.jobs(EVERYTHING)} == set(JobStatus)
    states = {item.processing_state for item in await mixed.events(EVERYTHING)}
    assert states == set(ProcessingState)
    assert {item.outcome for item in await mixed.deliveries(EVERYTHING)} == set(Outcome)
    assert len(await mixed.effects(EVERYTHING)) > 3
    assert len(await mixed.audit(EVERYTHING)) > 3


async def test_every_list_is_newest_first_and_its_pages_miss_nothing(
    mixed: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for kind, limit in product(LISTS, (1, 7, 1000)):
        with subtests.test(f"{kind} in pages of {limit}"):
            items = await walk(mixed, kind, limit)
            ids = [int(item.id) for item in items]
            assert ids == sorted(set(ids), reverse=True)
            assert items == await listed(mixed, kind)
    tables = {kind: raw_db.count(f"onceward.{kind}") for kind in LISTS}
    tables["deliveries"] += EVENTS  # an event is its own first delivery
    assert {kind: len(await listed(mixed, kind)) for kind in LISTS} == tables


STATUSES: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "events": ("processing_state", list(ProcessingState)),
    "jobs": ("status", list(JobStatus)),
    "deliveries": ("outcome", list(Outcome)),
    "effects": ("status", ["pending", "succeeded", "failed", "unknown"]),
}


async def test_a_status_filter_returns_exactly_the_matches(
    mixed: Store, subtests: pytest.Subtests
) -> None:
    for kind, (name, statuses) in STATUSES.items():
        items = await listed(mixed, kind)
        for status in statuses:
            with subtests.test(f"{kind} that are {status}"):
                expected = [item for item in items if getattr(item, name) == status]
                assert await listed(mixed, kind, status=status) == expected
                assert await walk(mixed, kind, 3, status=status) == expected


async def test_an_event_id_filter_returns_the_items_of_the_event(mixed: Store) -> None:
    everything = {kind: await listed(mixed, kind) for kind in LISTS}
    event_of = {item.id: item.external_event_id for item in everything["jobs"]}
    for kind, items in everything.items():
        for event_id in (f"evt_{number}" for number in range(EVENTS)):
            expected = [item for item in items if subject(item, event_of) == event_id]
            assert await listed(mixed, kind, event_id=event_id) == expected, (kind, event_id)


def subject(item: Any, event_of: dict[str, str]) -> str:
    """Return the event id to which an item of any list belongs."""
    match item:
        case EventItem() | DeliveryItem():
            return item.event_id
        case JobItem():
            return item.external_event_id
        case _:
            return event_of[item.job_id]


@pytest.mark.parametrize(
    ("kind", "name"), [("events", "related_reference"), ("effects", "reference")]
)
async def test_a_reference_filter_returns_exactly_the_matches(
    mixed: Store, kind: str, name: str
) -> None:
    for number in range(6):
        reference = f"cus_{number}"
        items = await listed(mixed, kind)
        expected = [item for item in items if getattr(item, name) == reference]
        assert await listed(mixed, kind, reference=reference) == expected


async def test_a_source_filter_returns_exactly_the_matches(
    mixed: Store, subtests: pytest.Subtests
) -> None:
    event_of = {item.id: item.external_event_id for item in await listed(mixed, "jobs")}
    source_of = {item.event_id: item.source for item in await listed(mixed, "events")}
    for kind in ("events", "jobs", "effects", "deliveries"):
        with subtests.test(kind):
            items = await listed(mixed, kind)
            for source in SOURCES:
                expected = [item for item in items if source_of[subject(item, event_of)] == source]
                assert 0 < len(expected) < len(items)
                assert await listed(mixed, kind, source=source) == expected
            assert await listed(mixed, kind, source="nobody") == []


async def test_a_handler_filter_returns_exactly_the_matches(
    mixed: Store, subtests: pytest.Subtests
) -> None:
    jobs = await listed(mixed, "jobs")
    for kind in ("events", "jobs", "effects"):
        with subtests.test(kind):
            items = await listed(mixed, kind)
            for handler in {job.handler for job in jobs}:
                own = {job.id for job in jobs if job.handler == handler}
                if kind == "events":
                    own = {job.event_ledger_id for job in jobs if job.handler == handler}
                expected = [item for item in items if getattr(item, "job_id", item.id) in own]
                assert 0 < len(expected) <= len(items)
                assert await listed(mixed, kind, handler=handler) == expected
            assert await listed(mixed, kind, handler="nobody") == []


async def test_filters_combine(mixed: Store) -> None:
    for state in ProcessingState:
        expected = [
            item
            for item in await listed(mixed, "events")
            if item.processing_state == state and item.related_reference == "cus_1"
        ]
        filtered = await listed(mixed, "events", status=state, reference="cus_1")
        assert filtered == expected


async def test_the_state_of_an_event_follows_from_its_jobs(mixed: Store) -> None:
    jobs = await listed(mixed, "jobs")
    for event in await listed(mixed, "events"):
        own = [job for job in jobs if job.event_ledger_id == event.id]
        state = state_of([job.status for job in own])
        if not own and int(event.event_id.removeprefix("evt_")) % 8 == REVIEWED:
            state = ProcessingState.REVIEW
        assert event.processing_state == state
        is_open = state in (ProcessingState.PENDING, ProcessingState.PROCESSING)
        ends = [job.finished_at for job in own if job.finished_at]
        assert event.processed_at == (max(ends) if ends and not is_open else None)


def state_of(jobs: Sequence[JobStatus]) -> ProcessingState:
    """Return the processing state of an event, by the documented rule."""
    rule = {
        JobStatus.IN_PROGRESS: ProcessingState.PROCESSING,
        JobStatus.QUEUED: ProcessingState.PENDING,
        JobStatus.FAILED: ProcessingState.FAILED,
        JobStatus.DONE: ProcessingState.SUCCEEDED,
    }
    return next(
        (state for status, state in rule.items() if status in jobs), ProcessingState.IGNORED
    )


async def test_deliveries_refer_to_their_event(store: Store) -> None:
    (receipt,) = await record(store, arrival())
    await record(store, arrival(), arrival(body=b"other"))
    items = await store.deliveries(EVERYTHING)
    assert [item.outcome for item in items] == ["conflict", "duplicate", "recorded"]
    assert {item.event_ledger_id for item in items} == {str(receipt.event)}
    assert items[-1].id == str(receipt.event)


FILTERED: Final[dict[str, Sequence[str]]] = {
    "event_id": LISTS,
    "reference": ("events", "effects"),
    "handler": ("events", "jobs", "effects"),
    "source": ("events", "jobs", "effects", "deliveries", "rejections"),
}


async def test_a_filter_cannot_inject_sql(store: Store, subtests: pytest.Subtests) -> None:
    await record(store, arrival("evt_1", reference="cus_1"))
    for text in ("'; DROP TABLE x --", "%", "_", "evt_1' OR '1'='1", "\\", "é"):
        with subtests.test(text):
            for name, kinds in FILTERED.items():
                for kind in kinds:
                    assert await listed(store, kind, **{name: text}) == [], (name, kind)


async def test_lists_of_an_empty_store_are_empty(store: Store) -> None:
    await store.ready()
    for kind in LISTS:
        assert await listed(store, kind) == []
    assert await store.job_status(1) is None


async def test_times_are_in_utc_and_close_to_now(store: Store) -> None:
    await record(store, arrival())
    (event,), (job,) = await listed(store, "events"), await listed(store, "jobs")
    for time in (event.received_at, job.available_at, job.created_at):
        assert time.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - time) < timedelta(seconds=10)


async def test_only_the_first_token_is_stored(store: Store) -> None:
    assert await store.tokens() == {}
    assert await store.add_first_token("ops", b"\0" * 32)
    assert not await store.add_first_token("other", b"\1" * 32)
    assert not await store.add_first_token("ops", b"\2" * 32)
    assert await store.tokens() == {"ops": b"\0" * 32}
