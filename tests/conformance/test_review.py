"""Events that no handler got: kept for review, routed to a handler, or dismissed."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceward.errors import NotFound, NotInState
from onceward.model.admin import PageQuery
from onceward.model.events import Arrival, Outcome, ProcessingState
from onceward.model.jobs import HandlerEntry, QueueRules, Route
from onceward.model.weeks import Week
from onceward.ports import Store
from support.database import RawDatabase
from tests.conformance.test_ordering_keys import keys
from tests.conformance.test_retention import finish
from tests.factories import ACT, CREDIT, EVERYTHING, HANDLERS, SOURCES, arrival, lease, record
from tests.maintaining import age, maintain

REVIEW, IGNORED = ProcessingState.REVIEW, ProcessingState.IGNORED
WANTING = HandlerEntry("wanting", 5, (Route("wanted"),), QueueRules(ordering_key="customer"))


def unknown(
    event_id: str, *, reviewed: bool = True, type: str = "unknown", **fields: Any
) -> Arrival:
    """Return a delivery of a type that no handler wants."""
    body = json.dumps({"customer": f"of {event_id}"}).encode()
    return arrival(event_id, type=type, body=body, **fields)._replace(reviewed=reviewed)


async def states(store: Store, **query: Any) -> dict[str, ProcessingState]:
    listed = await store.events(PageQuery(**{"limit": 99, **query}))
    return {item.event_id: item.processing_state for item in listed}


async def event_id_of(store: Store, event_id: str) -> int:
    (item,) = await store.events(PageQuery(limit=1, event_id=event_id))
    return int(item.id)


async def route(store: Store, event_id: str, handler: str = "wanting") -> int:
    routed = await store.route_event(await event_id_of(store, event_id), handler, ACT)
    assert routed is not None
    return int(routed.job)


async def test_an_unknown_type_waits_for_review_if_its_source_says_so(store: Store) -> None:
    await record(
        store,
        unknown("a"),
        unknown("b", reviewed=False),
        unknown("c", type="invoice.paid"),
        unknown("d", type=""),
    )
    assert await states(store) == {
        "a": REVIEW, "b": IGNORED, "c": ProcessingState.PENDING, "d": REVIEW,
    }  # fmt: skip
    assert await states(store, status="review") == {"a": REVIEW, "d": REVIEW}
    assert await states(store, status="ignored") == {"b": IGNORED}
    assert await store.events_in_review(limit=9) == 2
    assert await store.events_in_review(limit=1) == 1
    (item, _) = await store.events(PageQuery(limit=9, status="review"))
    assert item.processed_at is None
    (receipt,) = await record(store, unknown("a"))
    assert receipt.outcome is Outcome.DUPLICATE


async def test_an_event_that_filters_reject_is_not_unknown(store: Store) -> None:
    wanting = HandlerEntry("wanting", 5, (Route("unknown", None, '{"customer":["x"]}'),))
    await store.register(SOURCES, [*HANDLERS, wanting], [])
    await record(store, unknown("a"), unknown("b", type="other"))
    assert await states(store) == {"a": IGNORED, "b": REVIEW}


async def test_the_payload_of_an_event_in_review_is_kept(store: Store, raw_db: RawDatabase) -> None:
    await record(store, unknown("kept"), unknown("gone", reviewed=False))
    await finish(store, "done")
    age(raw_db, 400)
    await maintain(store)
    days = {"payload_days": 10, "dedupe_window_days": 30, "job_days": 5, "effect_days": 30}
    week = Week.of(datetime.now(UTC) - timedelta(days=400))
    assert await store.count_payloads(week) == (2, 1)
    await maintain(store, **days)
    assert await states(store) == {"kept": REVIEW}
    assert raw_db.count("onceward.payloads") == 1
    await store.dismiss(await event_id_of(store, "kept"), ACT)
    await maintain(store, **days)
    assert await states(store) == {}
    assert raw_db.count("onceward.payloads") == 0


async def test_a_dismissed_event_is_ignored(store: Store) -> None:
    await record(store, unknown("a"), unknown("b"))
    event = await event_id_of(store, "a")
    dismissed = await store.dismiss(event, ACT)
    assert dismissed is not None
    assert await states(store) == {"a": IGNORED, "b": REVIEW}
    assert await states(store, status="ignored") == {"a": IGNORED}
    (item,) = await store.events(PageQuery(limit=1, event_id="a"))
    assert item.processed_at == dismissed.processed_at is not None
    (entry,) = await store.audit(PageQuery(limit=9, event_id="a"))
    assert entry == dismissed.audit
    assert (entry.action, entry.subject, entry.job_id) == ("dismiss", f"event:{event}", None)
    assert (entry.actor, entry.authenticated_as, entry.reason) == (
        ACT.actor, ACT.authenticated_as, ACT.reason,
    )  # fmt: skip
    with pytest.raises(NotInState, match=f"Event {event} is not in review. Nothing was changed"):
        await store.dismiss(event, ACT)
    assert await store.dismiss(10**9, ACT) is None
    assert len(await store.audit(EVERYTHING)) == 1


@pytest.mark.parametrize("reviewed", [True, False])
async def test_a_routed_event_gets_the_job_that_it_would_have_had(
    store: Store, raw_db: RawDatabase, *, reviewed: bool
) -> None:
    await record(store, unknown("a", reviewed=reviewed))
    await store.register(SOURCES, [*HANDLERS, WANTING], [])
    event = await event_id_of(store, "a")
    routed = await store.route_event(event, "wanting", ACT)
    assert routed is not None
    assert await states(store) == {"a": ProcessingState.PENDING}
    assert keys(raw_db) == {("a", "wanting"): "of a"}
    times = "SELECT received_at FROM onceward.{}"
    assert raw_db.rows(times.format("jobs")) == raw_db.rows(times.format("events"))
    job = await store.job(int(routed.job), attempts=0)
    assert job is not None
    assert (job.max_attempts, job.attempts, job.event_ledger_id) == (5, 0, str(event))
    (entry,) = await store.audit(PageQuery(limit=9, event_id="a"))
    assert entry == routed.audit
    assert (entry.action, entry.subject) == ("route", f"job:{routed.job}")
    leased = await lease(store, handlers=["wanting"])
    assert [each.event_id for each in leased.jobs] == ["a"]
    await store.settle_done(leased.token, int(routed.job))
    assert await states(store) == {"a": ProcessingState.SUCCEEDED}
    assert await store.events_in_review(limit=9) == 0


async def test_a_filtered_event_can_be_routed_beside_a_job_that_is_done(
    store: Store, raw_db: RawDatabase
) -> None:
    choosy = HandlerEntry("choosy", 5, (Route("invoice.*", None, '{"customer":["x"]}'),))
    await store.register(SOURCES, [CREDIT, choosy], [])
    await finish(store, "a")
    await route(store, "a", "choosy")
    assert set(keys(raw_db)) == {("a", "credit"), ("a", "choosy")}
    assert await states(store) == {"a": ProcessingState.PENDING}


async def test_a_job_of_the_handler_is_not_repeated(store: Store) -> None:
    await store.register(SOURCES, [*HANDLERS, WANTING], [])
    await record(store, unknown("a"))
    job = await route(store, "a")
    for status in ("queued", "done"):
        text = f"has job {job} for handler wanting, which is {status}"
        with pytest.raises(NotInState, match=text):
            await route(store, "a")
        leased = await lease(store, handlers=["wanting"]) if status == "queued" else None
        if leased is not None:
            await store.settle_done(leased.token, job)
    assert len(await store.audit(EVERYTHING)) == 1


async def test_an_event_whose_jobs_were_purged_is_not_run_again(
    store: Store, raw_db: RawDatabase
) -> None:
    await finish(store, "a")
    age(raw_db, 50)
    await maintain(store, job_days=10)
    assert raw_db.count("onceward.jobs") == 0
    with pytest.raises(NotInState, match="Handler credit may have applied it"):
        await route(store, "a", "credit")
    assert raw_db.count("onceward.jobs") == 0


async def test_an_event_without_its_payload_is_not_routed(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, unknown("a", reviewed=False))
    raw_db.rows("DELETE FROM onceward.payloads")
    with pytest.raises(NotInState, match="its payload was dropped from the ledger"):
        await route(store, "a", "credit")
    assert (raw_db.count("onceward.jobs"), await store.audit(EVERYTHING)) == (0, [])


async def test_an_unknown_event_or_handler_is_not_found(store: Store) -> None:
    assert await store.route_event(10**9, "credit", ACT) is None
    await record(store, unknown("a"))
    with pytest.raises(NotFound, match="There is no handler nobody"):
        await route(store, "a", "nobody")
    assert await states(store) == {"a": REVIEW}


async def test_operators_who_route_at_once_create_one_job(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, unknown("a"))
    results = await asyncio.gather(
        *(route(store, "a", "credit") for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, NotInState) for result in results) == 4
    assert (raw_db.count("onceward.jobs"), len(await store.audit(EVERYTHING))) == (1, 1)
