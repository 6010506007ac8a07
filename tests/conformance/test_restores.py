"""Archived payloads are put back, and nothing runs again."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from onceward.archive.parquet_archive import ParquetArchive
from onceward.errors import ArchiveDamaged, ArchiveUnavailable, NotFound, StoreError
from onceward.model.admin import AuditItem
from onceward.model.archive import ArchiveItem, ArchiveQuery, EventKey, Restored
from onceward.model.weeks import Week
from onceward.operate import archiving, restoring
from onceward.operate.archive_files import find_event, read_body, verify_files
from onceward.operate.restoring import restore_week
from onceward.ports import Store
from onceward.store import archives
from onceward.store.archives import week_parameters
from onceward.store.queries import Queries
from support.database import RawDatabase
from support.processes import eventually_async
from tests.archiving import WEEK, archived, drop_payloads, in_folder, record_at
from tests.factories import ACT, EVERYTHING, arrival, arrivals, claim, lease, opened, record

PAGE = {"limit": 100, "max_bytes": 10**9}


@pytest.fixture
def archive(tmp_path: Path) -> ParquetArchive:
    return in_folder(tmp_path)


async def entries(store: Store) -> list[AuditItem]:
    return await store.audit(EVERYTHING)


async def test_payloads_come_back_to_their_events(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive
) -> None:
    await record_at(
        store, raw_db, arrival("evt_0", reference="sub_1", body=b"\0"), *arrivals(3)[1:]
    )
    before = await store.archive_page(WEEK, 0, **PAGE)
    await archived(store, archive)
    drop_payloads(raw_db)
    assert await store.archive_page(WEEK, 0, **PAGE) == []
    restored = await restore_week(store, archive, WEEK, ACT)
    assert (restored.payloads, restored.events, restored.present) == (3, 0, 0)
    assert await store.archive_page(WEEK, 0, **PAGE) == before
    again = await restore_week(store, archive, WEEK, ACT)
    assert (again.payloads, again.present) == (0, 3)


async def test_events_that_are_gone_come_back_without_jobs(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive
) -> None:
    await record_at(store, raw_db, arrival("evt_0", reference="sub_1"), arrival("evt_1"))
    await record(store, arrival("evt_0"), arrival("evt_0", body=b"[]"))
    facts = (
        "SELECT id, received_at, source, deliveries, conflicts, routed, event_id, type, reference, "
        "body_sha256 FROM onceward.events ORDER BY id"
    )
    rows = raw_db.rows(facts)
    await archived(store, archive)
    drop_payloads(raw_db, events=True)
    restored = await restore_week(store, archive, WEEK, ACT)
    assert (restored.payloads, restored.events, restored.skipped) == (2, 2, ())
    assert raw_db.rows(facts) == rows
    assert raw_db.count("onceward.jobs") == 0
    assert (await claim(store)).lease is None
    assert [event.body for event in await store.archive_page(WEEK, 0, **PAGE)] == [b"{}", b"{}"]


async def test_an_event_whose_key_or_id_belongs_to_another_is_skipped_and_listed(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive
) -> None:
    first, second, third = await record_at(store, raw_db, *arrivals(3))
    await archived(store, archive)
    drop_payloads(raw_db, events=True)
    await record(store, arrival("evt_0", body=b"new"))
    raw_db.rows(
        "INSERT INTO onceward.events "  # noqa: S608 - no outside data
        "(id, received_at, source, routed, event_id, type, body_sha256) "
        f"SELECT {second}, received_at, source, routed, 'other', type, body_sha256 "
        "FROM onceward.events"
    )
    restored = await restore_week(store, archive, WEEK, ACT)
    assert (restored.payloads, restored.events, restored.skipped_count) == (1, 1, 2)
    assert [(each.id, str(each.key), each.reason) for each in restored.skipped] == [
        (first, "stripe:evt_0", "another event has its event id now"),
        (second, "stripe:evt_1", "another event has its ledger id now"),
    ]
    assert [event.id for event in await store.archive_page(WEEK, 0, **PAGE)] == [third]


async def test_one_event_can_be_restored(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive
) -> None:
    await record_at(store, raw_db, *arrivals(3))
    await archived(store, archive)
    drop_payloads(raw_db)
    key = EventKey("stripe", "evt_1")
    assert (await restore_week(store, archive, WEEK, ACT, key=key)).payloads == 1
    assert [event.event_id for event in await store.archive_page(WEEK, 0, **PAGE)] == ["evt_1"]
    with pytest.raises(NotFound, match="has the event stripe:other"):
        await restore_week(store, archive, WEEK, ACT, key=EventKey("stripe", "other"))


async def test_a_restore_leaves_one_audit_entry_and_its_time(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PART_EVENTS", 2)
    monkeypatch.setattr(restoring, "RESTORE_EVENTS", 1)
    await record_at(store, raw_db, *arrivals(3))
    await archived(store, archive)
    seen: list[Restored] = []
    await restore_week(store, archive, WEEK, ACT, progress=seen.append)
    assert [restored.present for restored in seen] == [1, 2, 3]
    (entry,) = await entries(store)
    assert (entry.action, entry.subject) == ("restore_archive", "archive:20260105")
    assert (entry.actor, entry.reason) == (ACT.actor, ACT.reason)
    files = await store.archives(ArchiveQuery())
    assert all(file.restored_at is not None for file in files)


async def test_a_transaction_of_a_restore_is_bounded_in_bytes(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "RESTORE_BYTES", 100)
    await record_at(store, raw_db, *(arrival(f"evt_{place}", body=b"x" * 40) for place in range(5)))
    await archived(store, archive)
    seen: list[Restored] = []
    await restore_week(store, archive, WEEK, ACT, progress=seen.append)
    assert [restored.present for restored in seen] == [2, 4, 5]


async def test_a_restore_that_was_interrupted_is_repeated(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "RESTORE_EVENTS", 2)
    await record_at(store, raw_db, *arrivals(5))
    await archived(store, archive)
    drop_payloads(raw_db)

    def interrupt(_: Restored) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await restore_week(store, archive, WEEK, ACT, progress=interrupt)
    restored = await restore_week(store, archive, WEEK, ACT)
    assert (restored.payloads, restored.present) == (3, 2)


async def restore_times(store: Store) -> set[datetime | None]:
    return {file.restored_at for file in await store.archives(ArchiveQuery())}


@pytest.mark.parametrize("fault", ["damaged", "unavailable", "database"])
async def test_a_restore_that_fails_leaves_no_trace(
    store: Store,
    raw_db: RawDatabase,
    archive: ParquetArchive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fault: str,
) -> None:
    (file,) = await archived_and_dropped(store, raw_db, archive)
    if fault == "damaged":
        (tmp_path / file.path).unlink()
        restored = await restore_week(store, archive, WEEK, ACT)
        assert ([each.path for each in restored.damaged], restored.audit_entry) == (
            [file.path],
            None,
        )
    elif fault == "unavailable":
        refuse_file(archive, file, monkeypatch)
        with pytest.raises(ArchiveUnavailable, match=r"\. Nothing was restored\.$"):
            await restore_week(store, archive, WEEK, ACT)
    else:

        async def fail(*_: object) -> None:
            raise StoreError("the disk is full")

        monkeypatch.setattr(archives, "_restore", fail)
        with pytest.raises(StoreError, match="the disk is full"):
            await restore_week(store, archive, WEEK, ACT)
    assert (await entries(store), await restore_times(store)) == ([], {None})


async def test_a_restore_that_fails_later_says_what_it_put_back(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads are back, and stay: the entry and the time of the restore are true."""
    _, failing, _ = await archived_in_three_parts(store, raw_db, archive, monkeypatch)
    refuse_file(archive, failing, monkeypatch)
    with pytest.raises(ArchiveUnavailable, match=r"gone\. 1 payloads were restored before it fail"):
        await restore_week(store, archive, WEEK, ACT)
    assert await restored_ids(store) == ["evt_0"]
    assert [entry.action for entry in await entries(store)] == ["restore_archive"]
    assert None not in await restore_times(store)


def refuse_file(
    archive: ParquetArchive, file: ArchiveItem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the archive become unavailable when a file is read."""
    get = archive._files.get

    async def refuse(path: str, target: Path, max_bytes: int) -> None:
        if path == file.path:
            raise ArchiveUnavailable("the bucket is gone")
        await get(path, target, max_bytes)

    monkeypatch.setattr(archive._files, "get", refuse)


async def archived_and_dropped(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive
) -> tuple[ArchiveItem, ...]:
    """Archive evt_0 to evt_2 in one file, and drop their payloads."""
    await record_at(store, raw_db, *arrivals(3))
    files = await archived(store, archive)
    drop_payloads(raw_db)
    return files


async def archived_in_three_parts(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> tuple[ArchiveItem, ...]:
    """Archive evt_0 to evt_2, each in a file of its own, and drop their payloads."""
    monkeypatch.setattr(archiving, "PART_EVENTS", 1)
    return await archived_and_dropped(store, raw_db, archive)


async def restored_ids(store: Store) -> list[str]:
    return [event.event_id for event in await store.archive_page(WEEK, 0, **PAGE)]


async def test_nothing_of_a_damaged_file_is_restored_and_the_others_are(
    store: Store,
    raw_db: RawDatabase,
    archive: ParquetArchive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, changed, missing = await archived_in_three_parts(store, raw_db, archive, monkeypatch)
    path = tmp_path / changed.path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (tmp_path / missing.path).unlink()
    restored = await restore_week(store, archive, WEEK, ACT)
    assert (restored.payloads, await restored_ids(store)) == (1, ["evt_0"])
    assert [file.path for file in restored.damaged] == [changed.path, missing.path]
    faults = [file.fault for file in restored.damaged]
    assert f"{changed.path}: its SHA-256 is not the recorded one. Restore the file" in faults[0]
    assert f"{missing.path}: it is missing. Restore the file from a backup" in faults[1]


@pytest.mark.parametrize("has_rows", [True, False])
async def test_an_event_of_an_intact_file_is_found_beside_a_damaged_one(
    store: Store,
    raw_db: RawDatabase,
    archive: ParquetArchive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_rows: bool,
) -> None:
    """While the ledger has the event, its id says which file has it."""
    _, _, missing = await archived_in_three_parts(store, raw_db, archive, monkeypatch)
    (tmp_path / missing.path).unlink()
    if not has_rows:
        drop_payloads(raw_db, events=True)
    damaged = [] if has_rows else [missing.path]
    key = EventKey("stripe", "evt_0")
    found = await find_event(store, archive, key)
    assert (found.event.event_id, [file.path for file in found.damaged]) == ("evt_0", damaged)
    restored = await restore_week(store, archive, WEEK, ACT, key=key)
    assert (restored.payloads, [file.path for file in restored.damaged]) == (1, damaged)
    assert await restored_ids(store) == ["evt_0"]


async def test_an_event_that_only_a_damaged_file_may_have_is_not_called_unknown(
    store: Store,
    raw_db: RawDatabase,
    archive: ParquetArchive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, missing = await archived_in_three_parts(store, raw_db, archive, monkeypatch)
    (tmp_path / missing.path).unlink()
    key = EventKey("stripe", "evt_2")
    with pytest.raises(ArchiveDamaged, match=rf"one may\. .*{missing.path}: it is missing"):
        await find_event(store, archive, key)
    with pytest.raises(ArchiveDamaged, match="No intact file has the event stripe:evt_2"):
        await restore_week(store, archive, WEEK, ACT, key=key)
    assert await entries(store) == []


async def test_an_event_that_is_not_archived_yet_is_not_found(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive
) -> None:
    await record_at(store, raw_db, arrival("evt_0"))
    await archived(store, archive)
    (receipt,) = await record(store, arrival("new"))
    with pytest.raises(NotFound, match=f"the event stripe:new under its ledger id {receipt.event}"):
        await find_event(store, archive, EventKey("stripe", "new"))


async def test_a_body_is_audited_before_it_is_returned(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    (event,) = await record_at(store, raw_db, arrival("evt_0", body=b"secret"))
    await archived(store, archive)
    found = await read_body(store, archive, EventKey("stripe", "evt_0"), ACT)
    assert found.event.body == b"secret"
    (entry,) = await entries(store)
    assert (entry.action, entry.subject) == ("read_archive", f"event:{event}")

    async def fail(*_: object) -> None:
        raise StoreError("the audit entry is refused")

    monkeypatch.setattr(store, "audit_archive_read", fail)
    with pytest.raises(StoreError, match="is refused"):
        await read_body(store, archive, EventKey("stripe", "evt_0"), ACT)


async def test_only_intact_files_are_stored_as_verified(
    store: Store,
    raw_db: RawDatabase,
    archive: ParquetArchive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, missing, last = await archived_in_three_parts(store, raw_db, archive, monkeypatch)
    (tmp_path / missing.path).unlink()
    verified = [each async for each in verify_files(store, archive, ArchiveQuery())]
    assert [file for file, _ in verified] == [first, missing, last]
    assert [bool(fault) for _, fault in verified] == [False, True, False]
    files = await store.archives(ArchiveQuery())
    before = (first, missing, last)
    later = [file.verified_at > old.verified_at for file, old in zip(files, before, strict=True)]
    assert later == [True, False, True]


async def test_an_event_that_arrives_meanwhile_is_not_counted_as_present(
    postgres_url: str, tmp_path: Path
) -> None:
    """Recording takes no lock, so that a receiver can use the key between two statements."""
    archive, raw_db = in_folder(tmp_path), RawDatabase(postgres_url)
    async with opened(postgres_url) as store:
        await record_at(store, raw_db, arrival("evt_0"))
        await archived(store, archive)
        drop_payloads(raw_db, events=True)
        with psycopg.connect(postgres_url) as receiver:
            receiver.execute(
                "INSERT INTO onceward.events "
                "(id, received_at, source, routed, event_id, type, body_sha256) "
                "SELECT nextval('onceward.ledger_ids'), now(), id, true, 'evt_0', 'a', '' "
                "FROM onceward.sources WHERE name = 'stripe'"
            )
            restoring = asyncio.create_task(restore_week(store, archive, WEEK, ACT))
            await eventually_async(lambda: is_blocked(raw_db), "the restore waits")
        restored = await restoring
    assert (restored.payloads, restored.present, restored.skipped_count) == (0, 0, 1)
    assert restored.skipped[0].reason == "another event has its event id now"


async def is_blocked(raw_db: RawDatabase) -> bool:
    return bool(
        raw_db.value(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


async def test_a_week_without_files_cannot_be_restored(
    store: Store, archive: ParquetArchive
) -> None:
    with pytest.raises(NotFound, match="No file of the week 20260105"):
        await restore_week(store, archive, WEEK, ACT)
    assert await entries(store) == []


async def test_a_handler_can_load_a_restored_body(
    store: Store, raw_db: RawDatabase, archive: ParquetArchive
) -> None:
    await record_at(store, raw_db, arrival(body=b"x" * 100_000))
    await archived(store, archive)
    drop_payloads(raw_db)
    await restore_week(store, archive, WEEK, ACT)
    (job,) = (await lease(store)).jobs
    assert await store.load_body(job) == b"x" * 100_000


async def test_archiving_reads_no_partition_of_another_week(postgres_url: str) -> None:
    week = Week.of(datetime.now(UTC))
    parameters = {**week_parameters(week), "after": 0, **PAGE}
    with psycopg.connect(postgres_url) as connection:
        for name in ("archive_page", "has_unarchived"):
            connection.execute(Queries("postgres").one(name).pyformat, parameters, prepare=False)
        rows = connection.execute(
            "SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid() "
            "AND relation::regclass::text LIKE 'onceward.payloads%'"
        ).fetchall()
    partition = f"onceward.payloads_{week}"
    assert {name for (name,) in rows} == {"onceward.payloads", partition, f"{partition}_pkey"}
