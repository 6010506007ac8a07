"""Duplicate bodies, rejections, conflicts, secrets and purges on both stores."""

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import onceward
from onceward.errors import NotInState, RejectionCause
from onceward.model.admin import PageQuery, Rejection
from onceward.model.events import Arrival, DuplicateBody, Outcome
from onceward.model.jobs import FailureType, JobStatus
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.sources.configure import make_source
from onceward.sources.request import Headers, Request
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import ACT, EVERYTHING, arrival, lease, opened, record

SECRET = "a-secret-of-the-account"
FLAG, HOLD = DuplicateBody.FLAGGED, DuplicateBody.HELD


def checked(event_id: str, rule: DuplicateBody, **fields: Any) -> Arrival:
    return arrival(event_id, **fields)._replace(duplicate_body=rule)


async def flagged(store: Store) -> list[str]:
    items = await store.events(PageQuery(limit=100, duplicate_body=True))
    return [item.event_id for item in items]


# Duplicate bodies.


@pytest.mark.parametrize("together", [True, False], ids=["in-one-batch", "one-by-one"])
async def test_an_event_with_the_body_of_another_is_flagged(
    store: Store, *, together: bool
) -> None:
    arrivals = [checked("a", FLAG), checked("b", FLAG), checked("c", FLAG, body=b"[]")]
    for batch in [arrivals] if together else [[single] for single in arrivals]:
        receipts = await record(store, *batch)
        assert {receipt.outcome for receipt in receipts} == {Outcome.RECORDED}
    assert await flagged(store) == ["b"]
    items = {item.event_id: item for item in await store.events(EVERYTHING)}
    assert items["b"].duplicate_body_of == items["a"].id
    assert items["a"].duplicate_body_of is None
    assert {job.status for job in await store.jobs(EVERYTHING)} == {JobStatus.QUEUED}


async def test_another_body_with_the_same_signature_is_flagged(store: Store) -> None:
    document = {"signature": {"token": "t" * 50}, "event-data": {"id": "first", "event": "opened"}}
    signed = onceward.sign("mailgun", secret=SECRET, body=json.dumps(document).encode())
    source = make_source("mailgun", secrets=[SECRET])
    for name in (b"first", b"second"):
        forged = Request(Headers([]), signed.body.replace(b"first", name))
        events = source.verify(forged, SystemClock().now())
        assert isinstance(events, list)
        for single in source.arrivals(events, forged.headers):
            await record(store, single._replace(source="stripe"))
    assert await flagged(store) == ["second"]


async def test_sources_without_the_rule_are_not_checked(store: Store) -> None:
    await record(store, arrival("a"), arrival("b"))
    await record(store, checked("c", FLAG), arrival("d"))
    assert await flagged(store) == []


async def test_the_rule_applies_beside_events_of_sources_without_it(store: Store) -> None:
    await record(store, checked("a", FLAG))
    await record(store, checked("b", FLAG), arrival("c", source="ingest"))
    await record(store, arrival("d", source="ingest"), checked("e", FLAG))
    assert sorted(await flagged(store)) == ["b", "e"]


async def test_a_redelivery_is_not_a_duplicate_body(store: Store) -> None:
    for _ in range(2):
        await record(store, checked("a", HOLD), checked("a", HOLD))
    assert await flagged(store) == []


async def test_bodies_are_compared_within_a_source(store: Store) -> None:
    await record(store, checked("a", HOLD), checked("a", HOLD, source="ingest"))
    assert await flagged(store) == []


async def test_a_held_job_runs_only_after_a_requeue(store: Store) -> None:
    await record(store, checked("a", HOLD))
    await record(store, checked("b", HOLD), checked("c", HOLD, body=b"[]"))
    jobs = {job.external_event_id: job for job in await store.jobs(EVERYTHING)}
    assert jobs["a"].status is jobs["c"].status is JobStatus.QUEUED
    held = jobs["b"]
    assert (held.status, held.failure_type, held.attempts) == ("failed", FailureType.HELD, 0)
    assert "the same body" in (held.last_error or "")
    assert {job.event_id for job in (await lease(store)).jobs} == {"a", "c"}
    assert await store.requeue(int(held.id), ACT) is not None
    assert [job.event_id for job in (await lease(store)).jobs] == ["b"]


async def test_concurrent_receivers_flag_one_of_two_events(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as other:
        for number in range(20):
            body = str(number).encode()
            await asyncio.gather(
                record(one, checked(f"a{number}", HOLD, body=body)),
                record(other, checked(f"b{number}", HOLD, body=body)),
            )
        assert len(await flagged(one)) == 20
        held = await one.jobs(PageQuery(limit=100, status="failed"))
        assert {job.external_event_id for job in held} == set(await flagged(one))


# Rejected requests.


def rejection(source: str = "stripe", **changes: Any) -> Rejection:
    fields: dict[str, Any] = {
        "check": "no signature matched",
        "cause": RejectionCause.MISMATCH,
        "received_at": 1e9,
        "last_at": 2e9,
    }
    return Rejection(source, **(fields | changes))


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
    filtered = await store.rejections(PageQuery(limit=9, status="timestamp"))
    assert [item.check for item in filtered] == ["late"]
    counts = [(tally.source, tally.cause, tally.count) for tally in await store.rejection_counts()]
    assert counts == [
        ("ingest", "mismatch", 1),
        ("stripe", "mismatch", 3),
        ("stripe", "timestamp", 1),
    ]


async def test_all_rejections_are_counted_and_the_newest_are_stored(store: Store) -> None:
    await store.add_rejections([rejection(source="ingest", check="old")], keep=2)
    for number in range(5):
        await store.add_rejections([rejection(check=str(number))], keep=2)
    assert await checks(store) == ["4", "3", "2", "0", "old"]
    assert [tally.count for tally in await store.rejection_counts()] == [1, 5]


async def checks(store: Store) -> list[str]:
    return [item.check for item in await store.rejections(EVERYTHING)]


def hours_later(hours: float, **changes: Any) -> Rejection:
    seconds = 1_000_080_000 + hours * 3600  # a full hour
    return rejection(received_at=seconds, last_at=seconds, **changes)


async def test_a_flood_does_not_displace_the_kept_requests_of_other_hours(store: Store) -> None:
    content = {"body": b"{}", "request": b"x"}
    kept = [hours_later(hour, check=f"kept {hour}", **content) for hour in range(4)]
    await store.add_rejections(kept, keep=8)
    for number in range(60):
        flood = hours_later(4 + number / 60, check=f"flood {number}", **content)
        await store.add_rejections([flood], keep=8)
    left = await checks(store)
    assert left[-4:] == ["kept 3", "kept 2", "kept 1", "kept 0"]
    assert left[:-4] == [f"flood {number}" for number in range(59, 53, -1)]


@pytest.mark.parametrize(
    "flood",
    [{"body": None, "request": None}, {"cause": RejectionCause.MISSING}],
    ids=["counted", "of-another-cause"],
)
async def test_a_flood_leaves_room_for_other_rejections_of_its_hour(
    store: Store, flood: dict[str, Any]
) -> None:
    content: dict[str, Any] = {"body": b"{}", "request": b"x"}
    kept = [hours_later(0, check=f"kept {number}", **content) for number in range(4)]
    await store.add_rejections(kept, keep=8)
    for number in range(20):
        one = hours_later(0, **content | flood | {"check": f"flood {number}"})
        await store.add_rejections([one], keep=8)
    assert [check for check in await checks(store) if check.startswith("kept")] == [
        "kept 3",
        "kept 2",
        "kept 1",
        "kept 0",
    ]


async def test_the_oldest_hours_go_when_each_has_one_row(store: Store) -> None:
    for hour in range(10):
        await store.add_rejections([hours_later(hour, check=str(hour))], keep=3)
    assert await checks(store) == ["9", "8", "7", "6", "0"]


async def test_counts_have_the_times_of_the_first_and_the_last_rejection(store: Store) -> None:
    late = {"cause": RejectionCause.TIMESTAMP}
    await store.add_rejections([hours_later(0, count=2), hours_later(1, **late)], keep=1)
    for hour in range(2, 6):
        await store.add_rejections([hours_later(hour)], keep=1)
    mismatch, timestamp = await store.rejection_counts()
    assert mismatch.first_at == datetime.fromtimestamp(1_000_080_000, UTC)
    assert mismatch.last_at == mismatch.first_at + timedelta(hours=5)
    assert timestamp.first_at == timestamp.last_at == mismatch.first_at + timedelta(hours=1)


async def test_rejections_are_filtered_by_source(store: Store) -> None:
    await store.add_rejections([rejection(check="a"), rejection("ingest", check="b")], keep=9)
    for source, check in (("stripe", "a"), ("ingest", "b")):
        items = await store.rejections(PageQuery(limit=9, source=source))
        assert [item.check for item in items] == [check]


async def test_a_rejection_is_received_in_one_transaction(store: Store) -> None:
    await store.add_rejections([rejection(body=b"{}", request=b"x")], keep=10)
    (listed,) = await store.rejections(EVERYTHING)
    stored = await store.rejection(int(listed.id))
    assert stored is not None
    assert (stored.source, stored.request, stored.body) == ("stripe", b"x", b"{}")
    await record(store, arrival("known"))
    recording = await store.receive_rejection(int(listed.id), [arrival("a"), arrival("known")], ACT)
    assert [receipt.outcome for receipt in recording.events] == [
        Outcome.RECORDED,
        Outcome.DUPLICATE,
    ]
    (listed,) = await store.rejections(EVERYTHING)
    assert (listed.received_as, listed.kept) == (str(recording.events[0].event), False)
    (entry,) = await store.audit(EVERYTHING)
    assert entry == recording.audit
    assert (entry.action, entry.subject) == ("verify_again", f"rejection:{listed.id}")
    assert {job.external_event_id for job in await store.jobs(EVERYTHING)} == {"a", "known"}
    assert await store.rejection(999) is None


# Conflicts.


async def test_an_accepted_conflict_becomes_an_event(store: Store) -> None:
    await record(store, arrival("a"), arrival("a", body=b"[]"), arrival("a", body=b"[]"))
    deliveries = await store.deliveries(EVERYTHING)
    later, first = [item for item in deliveries if item.outcome == "conflict"]
    conflict = await store.conflict(int(later.id))
    assert conflict is not None
    assert (conflict.event_id, conflict.body) == ("a", b"[]")
    assert conflict.headers == b'{"via":"test"}'
    assert conflict.body_sha256 == hashlib.sha256(b"[]").digest()
    recording = await store.accept_conflict(int(later.id), arrival("a#1", body=b"[]"), ACT)
    (receipt,) = recording.events
    accepted = {item.id: item.accepted_as for item in await store.deliveries(EVERYTHING)}
    assert accepted[first.id] == accepted[later.id] == str(receipt.event)
    assert recording.audit.action == "accept_conflict"
    assert recording.audit.subject == f"delivery:{later.id}"
    assert await store.audit(EVERYTHING) == [recording.audit]
    assert {item.event_id for item in await store.events(EVERYTHING)} == {"a", "a#1"}
    assert await store.conflict(10**9) is None


async def test_a_conflict_is_accepted_once(store: Store) -> None:
    await record(store, arrival("a"), arrival("a", body=b"[]"))
    conflict, _ = await store.deliveries(EVERYTHING)
    recording = await store.accept_conflict(int(conflict.id), arrival("a#1", body=b"[]"), ACT)
    with pytest.raises(NotInState):
        await store.accept_conflict(int(conflict.id), arrival("a#2", body=b"[]"), ACT)
    conflict, _ = await store.deliveries(PageQuery(limit=2, event_id="a"))
    assert conflict.accepted_as == str(recording.events[0].event)
    assert {item.event_id for item in await store.events(EVERYTHING)} == {"a", "a#1"}
    assert await store.audit(EVERYTHING) == [recording.audit]


# Provisioned secrets.


async def test_a_provisioned_secret_is_stored_once(database_url: str) -> None:
    async with opened(database_url) as store:
        for secret in (b"first-secret", b"first-secret", b"second"):
            await store.store_secret("stripe", secret)
    async with opened(database_url) as store:
        secrets = await store.provisioned_secrets()
    assert [provisioned.source for provisioned in secrets] == ["stripe", "stripe"]
    assert {bytes(provisioned.secret) for provisioned in secrets} == {b"first-secret", b"second"}


# Purges.

TABLES = ["events", "payloads", "jobs", "attempts", "deliveries", "body_hashes", "duplicate_bodies"]


async def test_a_purge_deletes_old_events_with_all_their_rows(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, *(checked(f"old{number}", FLAG) for number in range(7)))
    await record(store, checked("old1", FLAG, body=b"[]"), arrival("needed", type="order.made"))
    done = await lease(store, handlers=["credit"], limit=10)
    assert await store.settle_done(done.token, *(job.id for job in done.jobs))
    age(raw_db, days=10)
    await record(store, arrival("new"))
    progress = await store.purge_events(0, limit=5, horizon_seconds=5 * 86_400)
    assert (progress.events, progress.next is None) == (5, False)
    progress = await store.purge_events(progress.next or 0, limit=5, horizon_seconds=5 * 86_400)
    assert (progress.events, progress.next) == (2, None)
    assert {item.event_id for item in await store.events(EVERYTHING)} == {"needed", "new"}
    counts = {name: raw_db.count(f"onceward.{name}") for name in TABLES}
    assert counts == dict.fromkeys(TABLES, 0) | {"events": 2, "payloads": 2, "jobs": 2}
    assert (await record(store, arrival("old1")))[0].outcome is Outcome.RECORDED


async def test_a_purge_deletes_the_redelivery_for_which_it_waited(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, arrival(type="unwanted"))
        age(raw_db, days=10)
        with psycopg.connect(postgres_url) as receiver:
            receiver.execute("UPDATE onceward.events SET deliveries = 2")
            receiver.execute(
                "INSERT INTO onceward.deliveries (id, event, received_at, outcome, body_sha256) "
                "SELECT 0, id, now(), 'duplicate', body_sha256 FROM onceward.events"
            )
            purge = asyncio.create_task(store.purge_events(0, limit=5, horizon_seconds=5 * 86_400))

            async def is_waiting() -> bool:
                return bool(raw_db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))

            await eventually_async(is_waiting, "the purge waits for the receiver")
        assert (await purge).events == 1
    assert raw_db.count("onceward.deliveries") == 0


def age(raw_db: RawDatabase, days: int) -> None:
    """Move everything received so far into the past."""
    shift = str(days * 86_400_000_000) if raw_db.is_sqlite else f"interval '{days} days'"
    for table in ("events", "payloads", "jobs"):
        raw_db.rows(f"UPDATE onceward.{table} SET received_at = received_at - {shift}")  # noqa: S608 - no outside data
