"""What is kept long enough is deleted, and nothing that is still needed."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from onceward import Inbox
from onceward.errors import StoreBlocked
from onceward.model.admin import PageQuery
from onceward.model.events import DuplicateBody, Outcome
from onceward.model.inline import InlineStatus
from onceward.model.jobs import Ignore, Reschedule
from onceward.model.retention import Purgeable, PurgeProgress
from onceward.operate import maintenance
from onceward.ports import Store
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.work.inline.plan import plan_jobs, recorded_status
from support.database import RawDatabase
from support.processes import eventually_async
from tests.archiving import moment
from tests.factories import (
    ACT,
    EVERYTHING,
    FakeClock,
    arrival,
    arrivals,
    checked,
    failed_job,
    lease,
    opened,
    record,
    working,
)
from tests.inprocess import receive_only
from tests.maintaining import age, age_audit, maintain, make_maintenance, planned, purge_all

FLAG = DuplicateBody.FLAGGED
TABLES = ["events", "payloads", "jobs", "attempts", "deliveries", "body_hashes", "duplicate_bodies"]


async def finish(store: Store, *event_ids: str, type: str = "invoice.paid") -> None:
    """Record events whose job is done."""
    await record(store, *(arrival(event_id, type=type) for event_id in event_ids))
    leased = await lease(store, limit=len(event_ids))
    assert await store.settle_done(leased.token, *(job.id for job in leased.jobs))
    await store.end_leases([leased.token])


async def purge_once(store: Store, table: Purgeable, after: int, limit: int) -> PurgeProgress:
    """Purge one page of what is older than five days."""
    before = datetime.now(UTC) - timedelta(days=5)
    return await store.purge(table, after, limit=limit, before=before)


async def event_ids(store: Store) -> list[str]:
    return sorted(item.event_id for item in await store.events(EVERYTHING))


async def states(store: Store, **filters: str) -> dict[str, str]:
    query = PageQuery(limit=100, **filters)  # type: ignore[arg-type] # only texts
    return {item.event_id: item.processing_state for item in await store.events(query)}


# Events.


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
    age(raw_db, 10)
    await record(store, arrival("new"))
    progress = await purge_once(store, Purgeable.EVENTS, 0, 5)
    assert (progress.rows, progress.next is None) == (5, False)
    progress = await purge_once(store, Purgeable.EVENTS, progress.next or 0, 5)
    assert (progress.rows, progress.next) == (2, None)
    assert await event_ids(store) == ["needed", "new"]
    counts = {name: raw_db.count(f"onceward.{name}") for name in TABLES}
    assert counts == dict.fromkeys(TABLES, 0) | {"events": 2, "payloads": 2, "jobs": 2}
    assert (await record(store, arrival("old1")))[0].outcome is Outcome.RECORDED


async def test_a_purge_deletes_the_redelivery_for_which_it_waited(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record(store, arrival(type="unwanted"))
        age(raw_db, 10)
        with psycopg.connect(postgres_url) as receiver:
            receiver.execute("UPDATE onceward.events SET deliveries = 2")
            receiver.execute(
                "INSERT INTO onceward.deliveries (id, event, received_at, outcome, body_sha256) "
                "SELECT 0, id, now(), 'duplicate', body_sha256 FROM onceward.events"
            )
            purging = await start_purge(store, raw_db)
        assert (await purging).rows == 1
    assert raw_db.count("onceward.deliveries") == 0


@pytest.mark.parametrize("table", [Purgeable.EVENTS, Purgeable.JOBS])
async def test_a_purge_locks_events_in_the_order_of_the_receivers(
    postgres_url: str, table: Purgeable
) -> None:
    """Otherwise the two could deadlock."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await finish(store, *(f"evt_{number}" for number in range(20)))
        age(raw_db, 10)
        with raw_db.connection() as receiver:
            receiver.execute("SELECT 1 FROM onceward.events ORDER BY id LIMIT 1 FOR UPDATE")
            purging = await start_purge(store, raw_db, table)
            others = "SELECT 1 FROM onceward.events ORDER BY id OFFSET 1 FOR UPDATE NOWAIT"
            receiver.execute(others)  # raises if the purge has one of them
        assert (await purging).rows == 20


async def start_purge(
    store: Store, raw_db: RawDatabase, table: Purgeable = Purgeable.EVENTS
) -> asyncio.Task[PurgeProgress]:
    """Start a purge and wait until it waits for a lock."""
    purging = asyncio.create_task(purge_once(store, table, 0, 20))

    async def is_waiting() -> bool:
        return bool(raw_db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await eventually_async(is_waiting, "the purge waits for the receiver")
    return purging


async def test_a_purge_keeps_the_events_of_failed_and_queued_jobs(
    store: Store, raw_db: RawDatabase
) -> None:
    await failed_job(store, "failed")
    await record(store, arrival("queued"), arrival("ignored", type="no.handler"))
    age(raw_db, 10)
    assert await purge_all(store, Purgeable.EVENTS, dedupe_window_days=1) == 1
    assert await event_ids(store) == ["failed", "queued"]
    assert raw_db.count("onceward.payloads") == 2


# Every table.


async def one_row_of_each(store: Store, raw_db: RawDatabase, name: str = "over") -> None:
    """Store an event that is over, with a row in every table that is purged."""
    await record(store, arrival(name), arrival(name))
    leased = await lease(store, limit=1)
    (job,) = leased.jobs
    assert await store.settle_error(leased.token, job.id, Reschedule(0.0, "again"), 0.1)
    leased = await lease(store, limit=1)
    async with working(store) as work:
        assert await work.unit.mark_effect(job.id, name, None)
        assert await work.unit.settle(leased.token, job.id)
    await store.end_leases([leased.token])
    raw_db.rows(
        "INSERT INTO onceward.rejections (received_at, last_at, source, count, cause, reason) "  # noqa: S608 - no outside data
        "SELECT received_at, received_at, source, 1, 'mismatch', 'x' FROM onceward.events "
        f"WHERE event_id = '{name}'"
    )


async def test_rows_are_kept_for_days(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    await one_row_of_each(store, raw_db)
    age(raw_db, 1, "effects")  # uses are stored once a day
    age(raw_db, 6.9)
    for table, setting in maintenance.SETTING_OF.items():
        with subtests.test(f"{table} that are new enough"):
            assert await planned(store, **{setting: 7}) == {}
            assert await maintain(store, **{setting: 7}) == {}
    age(raw_db, 0.2)
    for table, setting in maintenance.SETTING_OF.items():  # events last: others go with them
        with subtests.test(f"{table} that are too old"):
            assert await maintain(store, **{setting: 0}) == {}
            assert (await planned(store, **{setting: 7}))[table].rows == 1
            assert raw_db.count(f"onceward.{table}") == 1
            steps = await maintain(store, **{setting: 7})
            purged = {name: step.rows for name, step in steps.items() if step.action == "purge"}
            assert purged == {table: 1}
            assert raw_db.count(f"onceward.{table}") == 0


async def test_new_rows_on_the_page_of_old_ones_are_kept(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    await one_row_of_each(store, raw_db, "old")
    age(raw_db, 10)
    await one_row_of_each(store, raw_db, "new")
    for table, setting in maintenance.SETTING_OF.items():  # events last: others go with them
        with subtests.test(str(table)):
            assert (await planned(store, **{setting: 5}))[table].rows == 1
            assert await purge_all(store, table, **{setting: 5}) == 1
            assert raw_db.count(f"onceward.{table}") == 1


@pytest.mark.parametrize("table", [Purgeable.EVENTS, Purgeable.JOBS])
async def test_every_page_is_purged(
    store: Store,
    raw_db: RawDatabase,
    table: Purgeable,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    setting = maintenance.SETTING_OF[table]
    for number, page in enumerate((1, 2, 5), start=1):
        with subtests.test(f"pages of {page}"):
            monkeypatch.setattr(maintenance, "PAGE_ROWS", page)
            await finish(store, *(f"old {page} {event}" for event in range(5)))
            await record(store, *arrivals(2, prefix=f"needed {page}", type="order.new"))
            age(raw_db, 8)
            assert (await planned(store, **{setting: 7}))[table].rows == 5
            assert await purge_all(store, table, **{setting: 7}) == 5
            assert raw_db.count(f"onceward.{table}") == 2 * number


async def test_a_purge_pauses_for_longer_than_it_works(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receivers' commits wait for the disk behind those of the purge."""
    clock = FakeClock()
    pauses: list[float] = []

    class SlowStore:
        """A store that takes a tenth of a second for a page, then a second."""

        seconds = iter((0.1, 1.0))

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def purge(self, *args: Any, **more: Any) -> PurgeProgress:
            clock.seconds += next(self.seconds, 0.0)
            return await store.purge(*args, **more)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(maintenance, "PAGE_ROWS", 1)
    monkeypatch.setattr(maintenance, "_pause", pause)
    await finish(store, "a", "b")
    age(raw_db, 10)
    slow: Any = SlowStore()
    settings = Settings(payload_days=0, job_days=9)
    await maintenance.Maintenance(slow, settings, clock, Failpoints(), lambda: None).run()
    assert pauses == pytest.approx([0.9, maintenance.MAX_PAUSE_SECONDS])


async def test_a_purge_ends_at_the_first_page_without_an_old_row(
    store: Store, raw_db: RawDatabase
) -> None:
    """Otherwise each purge would read every row."""
    await record(store, arrival("old", type="no.handler"))
    age(raw_db, 10)
    await store.record(arrivals(5))
    first = await purge_once(store, Purgeable.EVENTS, 0, 2)
    assert first.rows == 1
    assert (await purge_once(store, Purgeable.EVENTS, first.next or 0, 2)).next is None
    before = datetime.now(UTC) - timedelta(days=5)
    counted = await store.count_old(Purgeable.EVENTS, first.next or 0, limit=2, before=before)
    assert counted == PurgeProgress(0, None)


@pytest.mark.parametrize("step", ["make_partitions", "drop_payloads", "drop_audit"])
async def test_a_blocked_step_does_not_stop_the_others(
    store: Store,
    raw_db: RawDatabase,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def block(*_: object, **__: object) -> None:
        raise StoreBlocked("a dump uses the table")

    job = await failed_job(store, "old")
    assert await store.cancel(int(job.id), ACT)
    age(raw_db, 20)
    age_audit(raw_db, 100)
    await maintain(store)
    monkeypatch.setattr(store, step, block)
    days = {"payload_days": 10, "audit_days": 50, "job_days": 10}
    steps = await maintain(store, "a dump uses the table", **days)
    assert steps["jobs"].rows == 1
    assert "a dump uses the table" in caplog.text


async def test_a_purge_is_logged_and_audited_once_with_its_reason(
    store: Store,
    raw_db: RawDatabase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(maintenance, "PAGE_ROWS", 1)
    await finish(store, "a", "b")
    age(raw_db, 10)
    caplog.set_level("INFO", "onceward.maintenance")
    await maintain(store, job_days=9)
    assert caplog.messages == ["2 jobs purged: older than 9 days"]
    (entry,) = await store.audit(EVERYTHING)
    assert (entry.actor, entry.authenticated_as) == ("onceward", "maintenance")
    assert (entry.action, entry.subject) == ("purge", "jobs")
    assert entry.reason == "older than 9 days (job_days)"


async def test_a_service_does_the_maintenance_when_it_starts(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with opened(database_url) as store:
        await record(store, arrival("old", type="no.handler"), arrival("needed"))
    age(raw_db, 31)
    async with receive_only(Inbox(), database_url, dedupe_window_days=30) as bench:

        async def is_purged() -> bool:
            return await event_ids(bench.store) == ["needed"]

        await eventually_async(is_purged, "the old event is purged")


# Jobs: the state of their event survives them.


async def test_an_event_keeps_its_state_when_its_jobs_are_purged(
    store: Store, raw_db: RawDatabase
) -> None:
    await finish(store, "done")
    await record(store, arrival("stale"), arrival("cancelled"), arrival("unwanted", type="no"))
    leased = await lease(store, limit=1)
    assert await store.settle_error(leased.token, leased.jobs[0].id, Ignore("stale"), 0.1)
    (waiting,) = await store.jobs(PageQuery(limit=9, status="queued"))
    assert await store.cancel(int(waiting.id), ACT)
    before = {item.event_id: item.processed_at for item in await store.events(EVERYTHING)}
    age(raw_db, 10, "jobs")
    aged = {item.event_id: item.processed_at for item in await store.events(EVERYTHING)}
    assert await purge_all(store, Purgeable.JOBS, job_days=5) == 3
    after = {item.event_id: item.processed_at for item in await store.events(EVERYTHING)}
    assert after == aged
    assert after["done"] == (before["done"] or datetime.now(UTC)) - timedelta(days=10)
    expected = {"done": "succeeded", "stale": "ignored", "cancelled": "ignored"}
    assert await states(store) == expected | {"unwanted": "ignored"}
    assert await states(store, status="succeeded") == {"done": "succeeded"}
    assert len(await states(store, status="ignored")) == 3


async def test_a_succeeded_event_stays_so_when_its_other_jobs_end(
    store: Store, raw_db: RawDatabase
) -> None:
    """A done job is purged first; then another one of the same event is cancelled, and purged."""
    await finish(store, "evt")
    raw_db.rows(
        "INSERT INTO onceward.jobs (event, received_at, available_at, created_at, handler, "
        "max_attempts) SELECT event, received_at, available_at, created_at, handler + 1, 3 "
        "FROM onceward.jobs"
    )
    age(raw_db, 10)
    assert await purge_all(store, Purgeable.JOBS, job_days=5) == 1
    assert await states(store) == {"evt": "pending"}
    (waiting,) = await store.jobs(EVERYTHING)
    assert await store.cancel(int(waiting.id), ACT)
    assert await states(store) == {"evt": "succeeded"}
    age(raw_db, 10)
    (before,) = await store.events(EVERYTHING)
    assert await purge_all(store, Purgeable.JOBS, job_days=5) == 1
    assert await states(store) == {"evt": "succeeded"}
    (after,) = await store.events(EVERYTHING)
    assert after.processed_at == before.processed_at


async def test_an_event_keeps_the_time_of_the_last_of_its_jobs(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that ended last is purged first."""
    monkeypatch.setattr(maintenance, "PAGE_ROWS", 1)
    await finish(store, "evt")
    shift = "86400000000" if raw_db.is_sqlite else "interval '1 day'"
    raw_db.rows(
        "INSERT INTO onceward.jobs (event, received_at, available_at, created_at, handler, "  # noqa: S608 - no outside data
        "max_attempts, status, finished_at) SELECT event, received_at, available_at, created_at, "
        f"handler + 1, 3, 'cancelled', finished_at - {shift} FROM onceward.jobs"
    )
    age(raw_db, 10)
    (before,) = await store.events(EVERYTHING)
    assert await purge_all(store, Purgeable.JOBS, job_days=5) == 2
    (after,) = await store.events(EVERYTHING)
    assert (after.processed_at, after.processing_state) == (before.processed_at, "succeeded")


async def test_a_job_that_ends_in_the_past_while_a_purge_runs_is_kept(postgres_url: str) -> None:
    """A clock that was set back ends it so. The purge did not store the state of its event."""
    raw_db = RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await finish(store, "old")
        age(raw_db, 10)
        await finish(store, "set back")
        with raw_db.connection() as receiver:
            receiver.execute("SELECT 1 FROM onceward.events ORDER BY id LIMIT 1 FOR UPDATE")
            purging = await start_purge(store, raw_db, Purgeable.JOBS)
            age(raw_db, 10, "jobs")
        assert (await purging).rows == 1
        assert await states(store) == {"old": "succeeded", "set back": "succeeded"}
        assert (await purge_once(store, Purgeable.JOBS, 0, 20)).rows == 1
        assert await states(store) == {"old": "succeeded", "set back": "succeeded"}


async def test_the_days_of_a_job_count_from_its_end(store: Store, raw_db: RawDatabase) -> None:
    await one_row_of_each(store, raw_db)
    age(raw_db, 10)
    raw_db.rows(f"UPDATE onceward.jobs SET finished_at = {moment(raw_db, datetime.now(UTC))}")  # noqa: S608 - no outside data
    assert await maintain(store, job_days=5) == {}
    assert await purge_once(store, Purgeable.JOBS, 0, 5) == PurgeProgress(0, None)
    assert (raw_db.count("onceward.jobs"), raw_db.count("onceward.attempts")) == (1, 1)


async def test_jobs_that_a_person_may_need_are_kept_with_their_attempts(
    store: Store, raw_db: RawDatabase
) -> None:
    await failed_job(store, "failed")
    raw_db.rows("UPDATE onceward.jobs SET finished_at = created_at")
    await record(store, arrival("queued"))
    leased = await lease(store, limit=1)
    assert await store.settle_error(leased.token, leased.jobs[0].id, Reschedule(9.0, "no"), 0.1)
    age(raw_db, 10)
    assert await maintain(store, job_days=1, attempt_days=1) == {}
    assert (raw_db.count("onceward.jobs"), raw_db.count("onceward.attempts")) == (2, 2)
    assert await store.audit(EVERYTHING) == []


async def test_the_attempts_of_a_purged_job_go_with_it(store: Store, raw_db: RawDatabase) -> None:
    await one_row_of_each(store, raw_db)
    age(raw_db, 10)
    assert await purge_all(store, Purgeable.JOBS, job_days=5) == 1
    assert raw_db.count("onceward.attempts") == 0


# Inline sources.


async def test_an_event_that_was_processed_inline_is_known_after_its_job_is_purged(
    store: Store, raw_db: RawDatabase
) -> None:
    await finish(store, "evt_1")
    age(raw_db, 10)
    assert await purge_all(store, Purgeable.JOBS, job_days=5) == 1
    view = await store.look([arrival()])
    (event,) = view.events
    assert event is not None
    assert plan_jobs([arrival()], view, {}, datetime.now(UTC)) == []
    (receipt,) = await record(store, arrival())
    assert recorded_status(event, receipt) is InlineStatus.ALREADY_PROCESSED


# Rejections.


async def test_a_rejection_that_repeats_is_kept(store: Store, raw_db: RawDatabase) -> None:
    await one_row_of_each(store, raw_db)
    age(raw_db, 10)
    shift = "6 * 86400000000" if raw_db.is_sqlite else "interval '6 days'"
    raw_db.rows(f"UPDATE onceward.rejections SET last_at = last_at + {shift}")  # noqa: S608 - no outside data
    assert await purge_all(store, Purgeable.REJECTIONS, rejection_days=5) == 0


def test_the_default_keeps_all_but_payloads() -> None:
    settings = Settings()
    assert settings.payload_days == 90
    days = [getattr(settings, name) for name in maintenance.SETTING_OF.values()]
    assert [*days, settings.audit_days] == [0] * 7


async def test_maintenance_that_has_nothing_to_do_changes_nothing(store: Store) -> None:
    await finish(store, "a")
    every = dict.fromkeys([*maintenance.SETTING_OF.values(), "payload_days", "audit_days"], 40)
    assert await maintain(store, **every) == {}
    assert not await make_maintenance(store).run()
    assert await store.audit(EVERYTHING) == []
