"""Rejections, conflicts and secrets on both stores."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceward.errors import NotInState, RejectionCause
from onceward.model.admin import PageQuery, Rejection
from onceward.model.events import Outcome
from onceward.ports import Store
from tests.factories import ACT, EVERYTHING, arrival, opened, record

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
