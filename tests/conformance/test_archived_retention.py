"""With an archive, payloads are dropped after they are in a verified file, and never before."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from onceward.archive.location import make_archive
from onceward.archive.parquet_archive import ParquetArchive
from onceward.errors import (
    ArchiveDamaged,
    ArchiveUnavailable,
    ConfigurationError,
    NotArchived,
    StoreBlocked,
)
from onceward.model.archive import ArchiveItem
from onceward.model.events import Outcome
from onceward.model.weeks import Week
from onceward.operate import archiving, maintenance
from onceward.operate.archive_files import check_files
from onceward.operate.archiving import archive_week
from onceward.operate.maintenance import ACTOR, Maintenance, Step
from onceward.operate.restoring import restore_week
from onceward.ports import Store
from onceward.ports.archive import PayloadArchive
from onceward.runtime.failpoints import Failpoints
from onceward.settings import resolve
from support.database import RawDatabase
from tests.archiving import moment
from tests.conformance.test_payload_retention import payloads, subject
from tests.conformance.test_retention import finish, states
from tests.factories import ACT, EVERYTHING, arrival, failed_job, record
from tests.maintaining import CHANGES, age, maintain, make_maintenance, planned

WEEK_OF_OLD = 40


@pytest.fixture
def archive(tmp_path: Path) -> str:
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder.as_uri()


def week_of_old() -> Week:
    week = Week.parse(subject(WEEK_OF_OLD).removeprefix("payloads_"))
    assert week is not None
    return week


def files(archive: str) -> list[Path]:
    return sorted(Path(archive.removeprefix("file://")).rglob("*.parquet"))


def remove_folder(archive: str) -> None:
    Path(archive.removeprefix("file://")).rmdir()


async def old_events(store: Store, raw_db: RawDatabase) -> None:
    """Store an event that is over and one that failed, both in one old week."""
    await finish(store, "done")
    await failed_job(store, "failed")
    age(raw_db, WEEK_OF_OLD)
    await maintain(store)  # on PostgreSQL: gives the week its partition


async def test_payloads_are_archived_and_then_dropped(
    store: Store, raw_db: RawDatabase, archive: str
) -> None:
    await old_events(store, raw_db)
    options = {"archive": archive, "payload_days": 10}
    plan = make_maintenance(store, **options).plan
    assert [step.action async for step in plan()] == ["archive", "drop", "keep"]
    steps: list[Step] = []
    await make_maintenance(store, **options).run(steps.append)
    done = [(step.action, step.rows) for step in steps if step.action in CHANGES]
    assert done == [("archive", 2), ("drop", 1 if raw_db.is_sqlite else None)]
    assert len(files(archive)) == 1
    assert payloads(raw_db) == ["failed"]
    assert raw_db.value("SELECT rows FROM onceward.archives") == 2
    actors = {entry.actor for entry in await store.audit(EVERYTHING)}
    assert actors == {ACTOR}


async def test_a_week_is_archived_once(store: Store, raw_db: RawDatabase, archive: str) -> None:
    """The payload that was kept for its job is dropped later; the file has it already."""
    await old_events(store, raw_db)
    await maintain(store, archive=archive, payload_days=10)
    (job,) = [item for item in await store.jobs(EVERYTHING) if item.status == "failed"]
    assert await store.cancel(int(job.id), ACT)
    plan = make_maintenance(store, archive=archive, payload_days=10).plan
    assert [step.action async for step in plan()] == ["drop"]
    await maintain(store, archive=archive, payload_days=10)
    assert (payloads(raw_db), len(files(archive))) == ([], 1)


async def test_a_week_that_is_restored_while_it_is_archived_stays(
    store: Store, raw_db: RawDatabase, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Archiving a large week takes hours, in which an operator may ask for it."""

    async def restore_meanwhile(store: Store, files: PayloadArchive, week: Week) -> None:
        await check_files(store, files, week)
        await restore_week(store, files, week, ACT)

    await old_events(store, raw_db)
    monkeypatch.setattr(maintenance, "check_files", restore_meanwhile)
    await maintain(store, archive=archive, payload_days=10)
    assert sorted(payloads(raw_db)) == ["done", "failed"]


async def test_nothing_goes_while_the_archive_cannot_be_used(
    store: Store,
    raw_db: RawDatabase,
    archive: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ArchiveUnavailable("the bucket is gone")

    await old_events(store, raw_db)
    monkeypatch.setattr(ParquetArchive, "write", fail)
    options = {"archive": archive, "payload_days": 10, "dedupe_window_days": 24, "job_days": 10}
    running = make_maintenance(store, **options)
    assert "are kept: the bucket is gone" in await running.run()
    assert running.needs_attention
    assert raw_db.count("onceward.jobs") == 1  # other tables are purged all the same
    assert payloads(raw_db) == ["done", "failed"]
    assert await states(store) == {"done": "succeeded", "failed": "failed"}
    assert "are kept: the bucket is gone" in caplog.text


async def test_a_process_without_the_archive_drops_nothing_that_others_archive(
    store: Store, raw_db: RawDatabase, archive: str
) -> None:
    """A cron job may lack the environment of the service."""
    await old_events(store, raw_db)
    await maintain(store, archive=archive, payload_days=10)
    await finish(store, "later")
    age(raw_db, 20)
    await maintain(store)
    running = make_maintenance(store, payload_days=10, dedupe_window_days=15)
    with pytest.raises(ArchiveUnavailable, match="this process has no archive"):
        await planned(store, payload_days=10)
    assert maintenance.NO_ARCHIVE in await running.run()
    assert running.warnings
    assert payloads(raw_db) == ["failed", "later"]


async def test_a_folder_that_is_gone_stops_payloads_only(
    store: Store, raw_db: RawDatabase, archive: str
) -> None:
    await old_events(store, raw_db)
    remove_folder(archive)
    options = {"archive": archive, "payload_days": 10, "job_days": 10}
    assert "are kept: " in await make_maintenance(store, **options).run()
    assert payloads(raw_db) == ["done", "failed"]
    assert raw_db.count("onceward.jobs") == 1


@pytest.mark.parametrize("blocked", ["drop_payloads", "make_partitions"])
async def test_events_wait_for_the_archive_of_their_payloads(
    store: Store, raw_db: RawDatabase, archive: str, monkeypatch: pytest.MonkeyPatch, blocked: str
) -> None:
    """A dump may block the first of several weeks, or the partitions of all of them."""

    async def block(*_: object, **__: object) -> None:
        raise StoreBlocked("a dump")

    for event_id in ("first", "second"):
        await finish(store, event_id)
        age(raw_db, 14)
    age(raw_db, WEEK_OF_OLD)
    if blocked == "drop_payloads":
        await maintain(store)
    monkeypatch.setattr(store, blocked, block)
    options = {"archive": archive, "payload_days": 10, "dedupe_window_days": 30}
    await make_maintenance(store, **options).run()
    archived = {event for (event,) in raw_db.rows("SELECT last_event FROM onceward.archives")}
    kept = {event for (event,) in raw_db.rows("SELECT event FROM onceward.payloads")}
    events = {event for (event,) in raw_db.rows("SELECT id FROM onceward.events")}
    assert len(archived | kept) == 2
    assert kept <= events
    monkeypatch.undo()
    await maintain(store, **options)
    assert raw_db.value("SELECT sum(rows) FROM onceward.archives") == 2
    assert raw_db.count("onceward.events") == 0


async def test_an_event_stays_whose_job_ends_after_its_week_was_dropped(
    store: Store, raw_db: RawDatabase, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drop left a week alone whose payloads were all needed: it was not archived."""
    job = await failed_job(store, "failed")
    age(raw_db, WEEK_OF_OLD)
    drop_audit = Maintenance._drop_audit

    async def cancel_and_go_on(*arguments: Any) -> None:
        assert await store.cancel(int(job.id), ACT)
        await drop_audit(*arguments)

    monkeypatch.setattr(Maintenance, "_drop_audit", cancel_and_go_on)
    options = {"archive": archive, "payload_days": 10, "dedupe_window_days": 24}
    assert await maintain(store, **options) == {}
    assert payloads(raw_db) == ["failed"]
    monkeypatch.undo()
    await maintain(store, **options)
    assert (await states(store), len(files(archive))) == ({}, 1)


async def test_a_drop_looks_for_payloads_that_are_in_no_file(
    store: Store, raw_db: RawDatabase, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that drops the payloads looks again, if nothing was archived before it."""

    async def forget(*_: object, **__: object) -> None:
        """Archive nothing."""

    await old_events(store, raw_db)
    with pytest.raises(NotArchived, match="in no recorded file"):
        await store.drop_payloads(week_of_old(), ACT, must_be_archived=True)
    monkeypatch.setattr(maintenance, "archive_week", forget)
    reason = await make_maintenance(store, archive=archive, payload_days=10).run()
    assert "in no recorded file" in reason
    assert payloads(raw_db) == ["done", "failed"]


def damage(path: Path, fault: str) -> None:
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize("fault", ["missing", "changed"])
async def test_no_payload_goes_because_of_a_file_that_was_damaged_since(
    store: Store, raw_db: RawDatabase, archive: str, fault: str
) -> None:
    """A payload that was kept for its job is dropped later than the file was recorded."""
    await old_events(store, raw_db)
    options = {"archive": archive, "payload_days": 10, "dedupe_window_days": 30}
    await maintain(store, **options)
    (job,) = [item for item in await store.jobs(EVERYTHING) if item.status == "failed"]
    assert await store.cancel(int(job.id), ACT)
    (path,) = files(archive)
    damage(path, fault)
    reason = await make_maintenance(store, **options).run()
    assert f"payloads of the week {week_of_old()} are kept: The archived file" in reason
    assert path.name in reason
    assert "delete its row from the table archives" in reason
    assert payloads(raw_db) == ["failed"]
    raw_db.rows("DELETE FROM onceward.archives")
    await maintain(store, **options)
    assert (await states(store), raw_db.value("SELECT rows FROM onceward.archives")) == ({}, 1)


async def test_a_damaged_file_keeps_no_other_week(
    store: Store, raw_db: RawDatabase, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finish(store, "first")
    age(raw_db, 14)
    await finish(store, "second")
    age(raw_db, WEEK_OF_OLD)
    await maintain(store)
    check = ParquetArchive.check

    async def check_damaged(archive: ParquetArchive, file: ArchiveItem) -> None:
        if file.week < week_of_old():
            raise ArchiveDamaged("it is missing")
        await check(archive, file)

    monkeypatch.setattr(ParquetArchive, "check", check_damaged)
    await maintain(store, "are kept: it is missing", archive=archive, payload_days=10)
    assert payloads(raw_db) == ["first"]


async def test_a_part_whose_record_was_deleted_is_archived_again(
    store: Store, raw_db: RawDatabase, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts after it are recorded, but say nothing about its events."""
    monkeypatch.setattr(archiving, "PART_EVENTS", 1)
    await finish(store, "a", "b", "c")
    age(raw_db, WEEK_OF_OLD)
    await maintain(store)
    folder = make_archive(archive, Failpoints())
    await archive_week(store, folder, week_of_old())
    raw_db.rows("DELETE FROM onceward.archives WHERE part = 1")
    assert await store.has_unarchived(week_of_old())
    with pytest.raises(NotArchived):
        await store.drop_payloads(week_of_old(), ACT, must_be_archived=True)
    await archive_week(store, folder, week_of_old())
    assert not await store.has_unarchived(week_of_old())
    parts = raw_db.rows("SELECT part, first_event FROM onceward.archives ORDER BY part")
    ids = raw_db.rows("SELECT id FROM onceward.events ORDER BY id")
    assert parts == [(part, event) for part, (event,) in enumerate(ids)]


async def test_restored_payloads_are_kept_as_long_as_new_ones(
    store: Store, raw_db: RawDatabase, archive: str
) -> None:
    await old_events(store, raw_db)
    options = {"archive": archive, "payload_days": 10, "dedupe_window_days": 30}
    await maintain(store, **options)
    assert await states(store) == {"failed": "failed"}  # the window of the other one is over
    restored = await restore_week(store, make_archive(archive, Failpoints()), week_of_old(), ACT)
    assert (restored.payloads, restored.events, restored.present) == (1, 1, 1)
    assert payloads(raw_db) == ["done", "failed"]
    assert await maintain(store, **options) == {}
    assert await states(store) == {"done": "succeeded", "failed": "failed"}
    assert (await record(store, arrival("done")))[0].outcome is Outcome.DUPLICATE
    shift = "31 * 86400000000" if raw_db.is_sqlite else "interval '31 days'"
    raw_db.rows(f"UPDATE onceward.archives SET restored_at = restored_at - {shift}")  # noqa: S608 - no outside data
    await maintain(store, **options)
    assert payloads(raw_db) == ["failed"]
    assert len(files(archive)) == 1


async def test_restored_events_outlive_their_payloads_again(
    store: Store, raw_db: RawDatabase, archive: str
) -> None:
    """Between `payload_days` and the window, both counted from the restore."""
    await finish(store, "done")
    age(raw_db, WEEK_OF_OLD)
    options = {"archive": archive, "payload_days": 10, "dedupe_window_days": 30}
    await maintain(store, **options)
    assert raw_db.count("onceward.events") == 0
    await restore_week(store, make_archive(archive, Failpoints()), week_of_old(), ACT)
    for days, has_payload, has_event in ((9, True, True), (20, False, True), (31, False, False)):
        shift = f"{days} * 86400000000" if raw_db.is_sqlite else f"interval '{days} days'"
        now = moment(raw_db, datetime.now(UTC))
        raw_db.rows(f"UPDATE onceward.archives SET restored_at = {now} - {shift}")  # noqa: S608 - no outside data
        await maintain(store, **options)
        assert payloads(raw_db) == ["done"] * has_payload, days
        assert await states(store) == ({"done": "succeeded"} if has_event else {}), days
    assert len(files(archive)) == 1


async def test_a_restored_week_does_not_keep_the_events_of_another(
    store: Store, raw_db: RawDatabase, archive: str
) -> None:
    await finish(store, "other")
    age(raw_db, 7)
    await old_events(store, raw_db)
    options = {"archive": archive, "payload_days": 10}
    await maintain(store, **options, dedupe_window_days=60)
    await restore_week(store, make_archive(archive, Failpoints()), week_of_old(), ACT)
    await maintain(store, **options, dedupe_window_days=30)
    assert await states(store) == {"done": "succeeded", "failed": "failed"}


async def test_the_archive_has_the_final_state_of_an_event_without_jobs(
    store: Store, raw_db: RawDatabase, archive: str
) -> None:
    await finish(store, "done")
    age(raw_db, WEEK_OF_OLD)
    await maintain(store, job_days=10)
    await maintain(store, archive=archive, payload_days=10, dedupe_window_days=30)
    assert raw_db.count("onceward.events") == 0
    await restore_week(store, make_archive(archive, Failpoints()), week_of_old(), ACT)
    (event,) = await store.events(EVERYTHING)
    assert event.processing_state == "succeeded"
    assert event.processed_at is not None


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"payload_days": 0}, "payload_days is 0: no payload would be archived"),
        ({"dedupe_window_days": 103}, "events would be deleted before their payloads are archived"),
        ({"dedupe_window_days": 104}, None),
    ],
)
def test_settings_that_would_lose_payloads_are_refused(
    settings: dict[str, int], fault: str | None
) -> None:
    code = {"archive": "file:///archive", **settings}
    if fault is None:
        resolve(code=code)
        return
    with pytest.raises(ConfigurationError, match=fault):
        resolve(code=code)
