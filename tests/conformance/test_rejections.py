"""What is known of senders beyond their events, on both stores."""

import asyncio
import hashlib
from typing import Any

import pytest

from onceward.errors import RejectionCause
from onceward.model.admin import PageQuery, Rejection
from onceward.model.events import Arrival, DuplicateBody, Outcome
from onceward.model.jobs import FailureType, JobStatus
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import ACT, EVERYTHING, arrival, lease, opened, record

FLAG, HOLD = DuplicateBody.FLAGGED, DuplicateBody.HELD


def watched(event_id: str, rule: DuplicateBody, **given: Any) -> Arrival:
    return arrival(event_id, **given)._replace(duplicate_body=rule)


async def flagged(store: Store) -> list[str]:
    items = await store.events(PageQuery(limit=100, duplicate_body=True))
    return [item.event_id for item in items]


# The same body under another id.


@pytest.mark.parametrize("together", [True, False], ids=["in-one-batch", "one-by-one"])
async def test_the_body_of_another_event_is_flagged(store: Store, *, together: bool) -> None:
    arrivals = [watched("a", FLAG), watched("b", FLAG), watched("c", FLAG, body=b"[]")]
    for batch in [arrivals] if together else [[one] for one in arrivals]:
        receipts = await record(store, *batch)
        assert {receipt.outcome for receipt in receipts} == {Outcome.RECORDED}
    assert await flagged(store) == ["b"]
    items = {item.event_id: item for item in await store.events(EVERYTHING)}
    assert items["b"].duplicate_body_of == items["a"].id
    assert items["a"].duplicate_body_of is None
    assert {job.status for job in await store.jobs(EVERYTHING)} == {JobStatus.QUEUED}


async def test_where_nobody_looks_for_it_nothing_is_flagged(store: Store) -> None:
    await record(store, arrival("a"), arrival("b"))
    await record(store, watched("c", FLAG), arrival("d"))
    assert await flagged(store) == []


async def test_a_redelivery_is_none(store: Store) -> None:
    for _ in range(2):
        await record(store, watched("a", HOLD), watched("a", HOLD))
    assert await flagged(store) == []


async def test_another_source_may_have_the_same_body(store: Store) -> None:
    await record(store, watched("a", HOLD), watched("a", HOLD, source="ingest"))
    assert await flagged(store) == []


async def test_one_that_is_held_waits_for_a_person(store: Store) -> None:
    await record(store, watched("a", HOLD))
    await record(store, watched("b", HOLD), watched("c", HOLD, body=b"[]"))
    jobs = {job.external_event_id: job for job in await store.jobs(EVERYTHING)}
    assert jobs["a"].status is jobs["c"].status is JobStatus.QUEUED
    held = jobs["b"]
    assert (held.status, held.failure_type, held.attempts) == ("failed", FailureType.HELD, 0)
    assert "the same body" in (held.last_error or "")
    assert {job.event_id for job in (await lease(store)).jobs} == {"a", "c"}
    assert await store.requeue(int(held.id), ACT) is not None
    assert [job.event_id for job in (await lease(store)).jobs] == ["b"]


async def test_two_receivers_flag_one_of_two(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as other:
        for number in range(20):
            body = str(number).encode()
            await asyncio.gather(
                record(one, watched(f"a{number}", HOLD, body=body)),
                record(other, watched(f"b{number}", HOLD, body=body)),
            )
        assert len(await flagged(one)) == 20
        held = await one.jobs(PageQuery(limit=100, status="failed"))
        assert {job.external_event_id for job in held} == set(await flagged(one))


# Requests that did not verify.


def rejection(source: str = "stripe", **given: Any) -> Rejection:
    said: dict[str, Any] = {
        "check": "no signature matched",
        "cause": RejectionCause.MISMATCH,
        "received_at": 1e9,
        "last_at": 2e9,
    }
    return Rejection(source, **(said | given))


async def test_a_rejection_is_listed_and_counted(store: Store) -> None:
    await store.add_rejections(
        [
            rejection(count=3),
            rejection(cause=RejectionCause.TIMESTAMP, check="late", body=b"{}", request=b"x"),
        ],
        keep=10,
    )
    await store.add_rejections([rejection(source="ingest")], keep=10)
    ingest, late, first = await store.rejections(EVERYTHING)
    assert (first.source, first.cause, first.check, first.count) == (
        "stripe",
        RejectionCause.MISMATCH,
        "no signature matched",
        3,
    )
    assert (first.received_at.timestamp(), first.last_at.timestamp()) == (1e9, 2e9)
    assert (first.kept, late.kept) == (False, True)
    assert ingest.source == "ingest"
    assert [it.check for it in await store.rejections(PageQuery(limit=9, status="timestamp"))] == [
        "late"
    ]
    counts = [(it.source, it.cause, it.count) for it in await store.rejection_counts()]
    assert counts == [
        ("ingest", "mismatch", 1),
        ("stripe", "mismatch", 3),
        ("stripe", "timestamp", 1),
    ]


async def test_only_the_newest_of_each_source_are_kept_and_all_are_counted(store: Store) -> None:
    await store.add_rejections([rejection(source="ingest", check="old")], keep=2)
    for number in range(5):
        await store.add_rejections([rejection(check=str(number))], keep=2)
    assert [it.check for it in await store.rejections(EVERYTHING)] == ["4", "3", "old"]
    assert [it.count for it in await store.rejection_counts()] == [1, 5]


async def test_what_was_rejected_is_received_in_one_transaction(store: Store) -> None:
    await store.add_rejections([rejection(body=b"{}", request=b"x")], keep=10)
    (listed,) = await store.rejections(EVERYTHING)
    kept = await store.rejection(int(listed.id))
    assert kept is not None
    assert (kept.source, kept.request, kept.body) == ("stripe", b"x", b"{}")
    await record(store, arrival("known"))
    taken = await store.receive_rejection(int(listed.id), [arrival("a"), arrival("known")], ACT)
    assert [it.outcome for it in taken.events] == [Outcome.RECORDED, Outcome.DUPLICATE]
    (listed,) = await store.rejections(EVERYTHING)
    assert (listed.received_as, listed.kept) == (str(taken.events[0].event), False)
    (entry,) = await store.audit(EVERYTHING)
    assert entry == taken.audit
    assert (entry.action, entry.subject) == ("verify_again", f"rejection:{listed.id}")
    assert {job.external_event_id for job in await store.jobs(EVERYTHING)} == {"a", "known"}
    assert await store.rejection(999) is None


# A conflict as an event of its own.


async def test_a_conflict_becomes_an_event_on_a_persons_word(store: Store) -> None:
    await record(store, arrival("a"), arrival("a", body=b"[]"), arrival("a", body=b"[]"))
    later, first = [it for it in await store.deliveries(EVERYTHING) if it.outcome == "conflict"]
    found = await store.conflict(int(later.id))
    assert found is not None
    assert (found.event_id, found.body, found.headers) == ("a", b"[]", b'{"via":"test"}')
    assert found.body_sha256 == hashlib.sha256(b"[]").digest()
    taken = await store.accept_conflict(int(later.id), arrival("a#1", body=b"[]"), ACT)
    (receipt,) = taken.events
    accepted = {it.id: it.accepted_as for it in await store.deliveries(EVERYTHING)}
    assert accepted[first.id] == accepted[later.id] == str(receipt.event)
    assert (taken.audit.action, taken.audit.subject) == ("accept_conflict", f"delivery:{later.id}")
    assert await store.audit(EVERYTHING) == [taken.audit]
    assert {it.event_id for it in await store.events(EVERYTHING)} == {"a", "a#1"}
    assert await store.conflict(10**9) is None


# Secrets that were handed over.


async def test_a_secret_is_learned_once(database_url: str) -> None:
    async with opened(database_url) as store:
        for secret in (b"first-secret", b"first-secret", b"second"):
            await store.store_secret("stripe", secret)
    async with opened(database_url) as store:
        provisioned_secret = await store.provisioned_secrets()
    assert [it.source for it in provisioned_secret] == ["stripe", "stripe"]
    assert {bytes(it.secret) for it in provisioned_secret} == {b"first-secret", b"second"}


# What is forgotten.

TABLES = ["events", "payloads", "jobs", "attempts", "deliveries", "body_hashes", "duplicate_bodies"]


async def test_events_beyond_the_horizon_are_forgotten_with_all_that_is_theirs(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, *(watched(f"old{number}", FLAG) for number in range(7)))
    await record(store, watched("old1", FLAG, body=b"[]"), arrival("needed", type="order.made"))
    done = await lease(store, handlers=["credit"], limit=10)
    assert await store.settle_done(done.token, *(job.id for job in done.jobs))
    age(raw_db, days=10)
    await record(store, arrival("new"))
    found = await store.purge_events(0, limit=5, horizon_seconds=5 * 86_400)
    assert (found.events, found.next is None) == (5, False)
    found = await store.purge_events(found.next or 0, limit=5, horizon_seconds=5 * 86_400)
    assert (found.events, found.next) == (2, None)
    assert {it.event_id for it in await store.events(EVERYTHING)} == {"needed", "new"}
    counts = {name: raw_db.count(f"onceward.{name}") for name in TABLES}
    assert counts == dict.fromkeys(TABLES, 0) | {"events": 2, "payloads": 2, "jobs": 2}
    assert (await record(store, arrival("old1")))[0].outcome is Outcome.RECORDED


def age(raw_db: RawDatabase, days: int) -> None:
    """Have all that was received come so much earlier."""
    shift = str(days * 86_400_000_000) if raw_db.is_sqlite else f"interval '{days} days'"
    for table in ("events", "payloads", "jobs"):
        raw_db.rows(f"UPDATE onceward.{table} SET received_at = received_at - {shift}")  # noqa: S608 - our own
