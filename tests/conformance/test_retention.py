"""Old events are purged with all their rows, unless a job still needs them."""

import asyncio

import psycopg
import pytest

from onceward import Inbox
from onceward.model.events import DuplicateBody, Outcome
from onceward.model.jobs import Reschedule
from onceward.operate import retention
from onceward.operate.retention import purge
from onceward.ports import PurgeProgress, Store
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import (
    EVERYTHING,
    arrival,
    arrivals,
    checked,
    failed_job,
    lease,
    opened,
    record,
)
from tests.inprocess import receive_only

FLAG = DuplicateBody.FLAGGED
TABLES = ["events", "payloads", "jobs", "attempts", "deliveries", "body_hashes", "duplicate_bodies"]


async def test_a_purge_deletes_old_events_with_all_their_rows(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, *(checked(f"old{number}", FLAG, covered=b"7") for number in range(7)))
    await record(store, checked("old1", FLAG, body=b"[]"), arrival("needed", type="order.made"))
    failing = await lease(store, limit=1)
    again = Reschedule(0.0, "again")
    assert await store.settle_error(failing.token, failing.jobs[0].id, again, 0.1)
    done = await lease(store, limit=10)
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
            purging = await start_purge(store, raw_db)
        assert (await purging).events == 1
    assert raw_db.count("onceward.deliveries") == 0


async def test_a_purge_locks_events_in_the_order_of_the_receivers(postgres_url: str) -> None:
    """Otherwise the two could deadlock."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, *arrivals(2, type="no.handler"))
        age(raw_db, days=10)
        with raw_db.connection() as receiver:
            receiver.execute("SELECT 1 FROM onceward.events ORDER BY id LIMIT 1 FOR UPDATE")
            purging = await start_purge(store, raw_db)
            last = "SELECT 1 FROM onceward.events ORDER BY id DESC LIMIT 1 FOR UPDATE NOWAIT"
            receiver.execute(last)  # raises if the purge has it
        assert (await purging).events == 2


async def start_purge(store: Store, raw_db: RawDatabase) -> asyncio.Task[PurgeProgress]:
    """Start a purge and wait until it waits for a lock."""
    purging = asyncio.create_task(store.purge_events(0, limit=5, horizon_seconds=5 * 86_400))

    async def is_waiting() -> bool:
        return bool(raw_db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await eventually_async(is_waiting, "the purge waits for the receiver")
    return purging


async def event_ids(store: Store) -> list[str]:
    return sorted(item.event_id for item in await store.events(EVERYTHING))


async def test_a_purge_keeps_the_events_of_failed_and_queued_jobs(
    store: Store, raw_db: RawDatabase
) -> None:
    await failed_job(store, "failed")
    await record(store, arrival("queued"), arrival("ignored", type="no.handler"))
    age(raw_db, days=10)
    assert (await store.purge_events(0, limit=9, horizon_seconds=86_400.0)).events == 1
    assert await event_ids(store) == ["failed", "queued"]
    assert raw_db.count("onceward.payloads") == 2


@pytest.mark.parametrize("batch", [1, 2])
async def test_the_window_is_in_days_and_every_batch_is_purged(
    store: Store,
    raw_db: RawDatabase,
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(retention, "PURGE_BATCH_EVENTS", batch)
    caplog.set_level("INFO", "onceward.retention")
    await record(store, *arrivals(2, prefix="needed"))  # a batch of which nothing is purged
    await record(store, *arrivals(5, type="no.handler", prefix="old"))
    age(raw_db, days=2)
    await record(store, arrival("young", type="no.handler"))
    age(raw_db, days=6)
    async with asyncio.timeout(10):
        await purge(store, 9)
        assert len(await event_ids(store)) == 8
        await purge(store, 0)
        assert len(await event_ids(store)) == 8
        await purge(store, 7)
    assert await event_ids(store) == ["needed_0", "needed_1", "young"]
    assert caplog.messages == ["5 events purged: older than 7 days"]


async def test_a_purge_ends_at_the_first_batch_with_a_young_event(
    store: Store, raw_db: RawDatabase
) -> None:
    """Otherwise each purge would read every event."""
    await record(store, arrival("old", type="no.handler"))
    age(raw_db, days=10)
    await store.record(arrivals(3))
    progress = await store.purge_events(0, limit=2, horizon_seconds=86_400.0)
    assert (progress.events, progress.next) == (1, None)


async def test_a_service_purges_when_it_starts(database_url: str, raw_db: RawDatabase) -> None:
    async with opened(database_url) as store:
        await record(store, arrival("old", type="no.handler"), arrival("needed"))
    age(raw_db, days=31)
    async with receive_only(Inbox(), database_url, dedupe_window_days=30) as bench:

        async def is_purged() -> bool:
            return await event_ids(bench.store) == ["needed"]

        await eventually_async(is_purged, "the old event is purged")


def age(raw_db: RawDatabase, days: int) -> None:
    """Move everything received so far into the past."""
    shift = str(days * 86_400_000_000) if raw_db.is_sqlite else f"interval '{days} days'"
    for table in ("events", "payloads", "jobs"):
        raw_db.rows(f"UPDATE onceward.{table} SET received_at = received_at - {shift}")  # noqa: S608 - no outside data
