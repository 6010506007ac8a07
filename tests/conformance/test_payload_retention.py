"""Old payloads and audit entries are dropped, week by week and month by month."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onceward.cli._progress import sentence
from onceward.errors import PermanentError
from onceward.model.events import Outcome
from onceward.model.weeks import Week
from onceward.operate import maintenance
from onceward.ports import Store
from onceward.store.sqlite import maintenance as sqlite_maintenance
from support.database import RawDatabase
from tests.conformance.test_retention import finish
from tests.factories import (
    ACT,
    EVERYTHING,
    arrival,
    failed_job,
    lease,
    make_store,
    opened,
    record,
)
from tests.maintaining import age, age_audit, kept, maintain, make_maintenance, planned


def payloads(raw_db: RawDatabase) -> list[str]:
    """Return the ids of the events that have a payload."""
    rows = raw_db.rows(
        "SELECT e.event_id FROM onceward.payloads p JOIN onceward.events e ON e.id = p.event "
        "ORDER BY e.id"
    )
    return [event_id for (event_id,) in rows]


def subject(days_ago: float) -> str:
    """Return the subject of the step that drops the payloads of a week in the past."""
    return f"payloads_{Week.of(datetime.now(UTC) - timedelta(days=days_ago)).label}"


def test_a_week_begins_on_monday_in_utc() -> None:
    sunday = datetime(2026, 11, 15, 23, 59, tzinfo=UTC)
    week = Week.of(sunday)
    assert (week.label, week.ends_at) == ("20261109", datetime(2026, 11, 16, tzinfo=UTC))
    assert Week.of(week.ends_at).starts_at == week.ends_at
    east = datetime.fromisoformat("2026-11-16T01:00+02:00")  # still Sunday in UTC
    assert Week.of(east) == week


async def test_the_payloads_of_a_week_go_and_its_events_stay(
    store: Store, raw_db: RawDatabase
) -> None:
    await finish(store, "old")
    age(raw_db, 20)
    await finish(store, "new")
    await maintain(store)
    assert set(await planned(store, payload_days=10)) == {subject(20)}
    assert payloads(raw_db) == ["old", "new"]
    assert set(await maintain(store, payload_days=10)) == {subject(20)}
    assert payloads(raw_db) == ["new"]
    assert (await record(store, arrival("old")))[0].outcome is Outcome.DUPLICATE
    (entry,) = await store.audit(EVERYTHING)
    assert entry.subject == subject(20).replace("_", ":")
    assert entry.reason == "older than 10 days (payload_days)"
    assert await maintain(store, payload_days=10) == {}


async def test_a_week_goes_only_when_all_of_it_is_old(store: Store, raw_db: RawDatabase) -> None:
    await finish(store, "old")
    week = Week.of(datetime.now(UTC))
    age(raw_db, 7)
    since_the_end = (datetime.now(UTC) - week.starts_at).total_seconds() / 86_400
    days = int(since_the_end) + 1
    assert await planned(store, payload_days=days) == {}
    assert await maintain(store, payload_days=days) == {}
    assert payloads(raw_db) == ["old"]


async def test_payloads_that_a_job_needs_are_kept(store: Store, raw_db: RawDatabase) -> None:
    await finish(store, "done")
    failed = await failed_job(store, "failed")
    await record(store, arrival("parked"))
    raw_db.rows("UPDATE onceward.jobs SET parked = true WHERE status = 'queued'")
    await record(store, arrival("queued"), arrival("leased"))
    await lease(store, limit=1)
    age(raw_db, 20)
    await maintain(store, payload_days=10)
    needed = ["failed", "parked", "queued", "leased"]
    assert payloads(raw_db) == needed
    assert await maintain(store, payload_days=10) == {}
    assert await store.cancel(int(failed.id), ACT)
    await maintain(store, payload_days=10)
    assert payloads(raw_db) == needed[1:]


async def test_the_jobs_that_keep_payloads_are_named(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those of weeks that have nothing else to drop."""
    caplog.set_level("INFO", "onceward.maintenance")
    jobs = [await failed_job(store, f"failed{number}") for number in range(4)]
    age(raw_db, 20)
    await failed_job(store, "new")
    for _ in range(2):
        caplog.clear()
        await maintain(store, payload_days=10)
        (line,) = caplog.messages
        assert line.startswith("payloads from before ")
        assert f"are kept for job {jobs[0].id} of 'credit' (failed, received 20" in line
    step = (await kept(store, payload_days=10))["payloads"]
    assert [job.id for job in step.jobs] == [job.id for job in jobs[:3]]
    assert f"for job {jobs[0].id} of 'credit' (failed, " in sentence(step)


async def test_a_held_event_keeps_its_payload(store: Store, raw_db: RawDatabase) -> None:
    failed = await failed_job(store, "held")
    raw_db.rows("UPDATE onceward.jobs SET failure_type = 'held'")
    age(raw_db, 20)
    await maintain(store, payload_days=10)
    assert await store.requeue(int(failed.id), ACT)
    leased = await lease(store, limit=1)
    assert leased.jobs[0].body == b"{}"


async def test_a_job_without_its_payload_fails_with_the_reason(
    store: Store, raw_db: RawDatabase
) -> None:
    """A person may erase the payload of an event, also of one whose job is queued."""
    await record(store, arrival("evt"))
    raw_db.rows("DELETE FROM onceward.payloads")
    leased = await lease(store, limit=1)
    with pytest.raises(PermanentError, match="no longer stored"):
        await store.load_body(leased.jobs[0])


async def test_payloads_never_outlive_their_events(store: Store, raw_db: RawDatabase) -> None:
    await finish(store, "old")
    age(raw_db, 20)
    await maintain(store, payload_days=0, dedupe_window_days=10)
    assert (payloads(raw_db), raw_db.count("onceward.payloads")) == ([], 0)


@pytest.mark.parametrize(
    ("payload_days", "dedupe_window_days", "days"),
    [(0, 0, 0), (10, 0, 10), (0, 10, 10), (10, 30, 10), (30, 10, 10)],
)
def test_payloads_are_kept_for_the_shorter_time(
    payload_days: int, dedupe_window_days: int, days: int
) -> None:
    store = make_store("sqlite:///never_opened.db")
    settings = {"payload_days": payload_days, "dedupe_window_days": dedupe_window_days}
    assert make_maintenance(store, **settings).payload_days == days


async def test_a_week_goes_alone_and_page_by_page(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_maintenance, "PAGE_PAYLOADS", 1)
    await finish(store, "older")
    age(raw_db, 7)
    await finish(store, "a", "b", "c")
    age(raw_db, 20)
    await finish(store, "new")
    await maintain(store)
    before = datetime.now(UTC) - timedelta(days=10)
    older, week = [Week.of(datetime.now(UTC) - timedelta(days=days)) for days in (27, 20)]
    assert await store.expired_weeks(before) == [older, week]
    assert await store.expired_weeks(week.ends_at) == [older, week]
    assert await store.expired_weeks(week.ends_at - timedelta(seconds=1)) == [older]
    await store.drop_payloads(week, ACT)
    assert payloads(raw_db) == ["older", "new"]
    assert len(await store.audit(EVERYTHING)) == 1
    assert await store.expired_weeks(before) == [older]


async def test_a_file_shrinks_when_payloads_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_maintenance, "VACUUM_PAGES", 10)
    url = f"sqlite:///{tmp_path}/ledger.db"
    raw_db = RawDatabase(url)
    async with opened(url) as store:
        await record(store, arrival("old", body=b"x" * 1_000_000, type="no.handler"))
        age(raw_db, 20)
        pages = raw_db.value("PRAGMA page_count")
        await maintain(store, payload_days=10)
        assert raw_db.value("PRAGMA freelist_count") == 0
        assert raw_db.value("PRAGMA page_count") < pages - 200


# The audit trail.


async def act(store: Store, event_id: str) -> None:
    """Do something that is audited."""
    failed = await failed_job(store, event_id)
    assert await store.cancel(int(failed.id), ACT)


async def test_old_audit_entries_go_and_the_others_stay(store: Store, raw_db: RawDatabase) -> None:
    await act(store, "a")
    age_audit(raw_db, 100)
    await act(store, "b")
    assert await maintain(store, audit_days=365) == {}
    assert len(await planned(store, audit_days=50)) == 1
    assert raw_db.count("onceward.audit") == 2
    assert len(await maintain(store, audit_days=50)) == 1
    entries = await store.audit(EVERYTHING)
    assert [entry.actor for entry in entries] == ["onceward", "Ann"]
    assert entries[0].reason == "older than 50 days (audit_days)"
    assert await maintain(store, audit_days=50) == {}


async def test_every_old_audit_entry_goes(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_maintenance, "PAGE_PAYLOADS", 1)
    for event_id in ("a", "b", "c"):
        await act(store, event_id)
    age_audit(raw_db, 100)
    await maintain(store, audit_days=50)
    assert [entry.actor for entry in await store.audit(EVERYTHING)] == ["onceward"]


@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET actor = 'x'"])
async def test_nobody_changes_an_entry(store: Store, raw_db: RawDatabase, statement: str) -> None:
    await act(store, "a")
    age_audit(raw_db, 100)
    await act(store, "b")
    await maintain(store, audit_days=50)
    tables = ["onceward.audit"]
    if not raw_db.is_sqlite:
        names = (
            "SELECT inhrelid::regclass::text FROM pg_inherits "
            "WHERE inhparent = 'onceward.audit'::regclass"
        )
        tables += [name for (name,) in raw_db.rows(names)]
    for table in tables:
        with pytest.raises(Exception, match="append only"):
            raw_db.rows(statement.format(table))


async def test_rows_of_a_clock_that_was_ahead_do_not_keep_those_after_them(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PAGE_ROWS", 2)
    monkeypatch.setattr(maintenance, "COUNTED_ROWS", 2)
    monkeypatch.setattr(sqlite_maintenance, "PAGE_PAYLOADS", 2)
    await finish(store, "ahead_1", "ahead_2")
    age(raw_db, -4_000)
    await finish(store, "old")
    age(raw_db, 50)
    settings = {"payload_days": 20, "job_days": 30, "dedupe_window_days": 40}
    assert (await planned(store, **settings))["jobs"].rows == 1
    assert set(await maintain(store, **settings)) == {subject(50), "jobs", "events"}
    assert payloads(raw_db) == ["ahead_1", "ahead_2"]
    assert [raw_db.count(f"onceward.{table}") for table in ("jobs", "events")] == [2, 2]
