"""Payloads of a past week are archived, read back, verified and recorded."""

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from onceward.archive import parquet
from onceward.errors import ArchiveDamaged, ArchiveUnavailable, NotInState
from onceward.model.archive import ArchiveFile, ArchiveItem, ArchiveQuery
from onceward.model.events import ProcessingState
from onceward.model.weeks import Week
from onceward.operate import archiving
from onceward.operate.archiving import archive_week
from onceward.ports import Store
from onceward.runtime.failpoints import FailpointReached, Failpoints
from support.database import RawDatabase
from tests.archiving import TIME, WEEK, archived, in_folder, record_at, rows_of
from tests.factories import arrival, arrivals, failed_job, lease, leased_job, record

BODIES = {
    "empty": b"",
    "nul": b"\0\0",
    "invalid_utf8": b"\xff\xfe\x80{",
    "long_integer": b'{"amount": 123456789012345678901234567890}',
    "quotes": b"'\"\\\r\n\t;--",
    "large": bytes(range(256)) * 20_480,
}


def count_files(folder: Path) -> int:
    return len(list(folder.rglob("*.parquet")))


async def test_every_kind_of_body_is_archived_as_it_was(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    await record_at(
        store,
        raw_db,
        *(arrival(name, body=body, reference="sub_é" if body else None)
          for name, body in BODIES.items()),
    )  # fmt: skip
    archive = in_folder(tmp_path)
    events = await rows_of(archive, await archived(store, archive))
    assert {event.event_id: event.body for event in events} == BODIES
    assert {event.reference for event in events} == {None, "sub_é"}
    assert {event.received_at for event in events} == {TIME}
    page = await store.archive_page(WEEK, 0, limit=100, max_bytes=10**9)
    assert events == page


async def test_a_row_has_the_facts_and_the_state_of_its_event(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    token, job = await leased_job(store, "succeeded")
    assert await store.settle_done(token, job.id)
    await failed_job(store, "failed")
    await record(store, arrival("processing"))
    await lease(store)
    again = arrival("pending"), arrival("pending"), arrival("pending", body=b"[]")
    await record(store, *again, arrival("ignored", type="no.handler"))
    await record(store, arrival("review", type="no.handler")._replace(reviewed=True))
    for name in ("events", "payloads", "jobs"):
        shift = "7 * 86400000000 * 100" if raw_db.is_sqlite else "interval '100 weeks'"
        raw_db.rows(f"UPDATE onceward.{name} SET received_at = received_at - {shift}")  # noqa: S608
    week = Week.of(datetime.now(UTC) - timedelta(weeks=100))
    archive = in_folder(tmp_path)
    events = await rows_of(archive, await archived(store, archive, week))
    assert {event.event_id: event.processing_state for event in events} == {
        state.value: state for state in ProcessingState
    }
    ended = {event.event_id for event in events if event.processed_at is not None}
    assert ended == {"succeeded", "failed"}
    facts = {event.event_id: (event.deliveries, event.conflicts, event.routed) for event in events}
    assert facts["pending"] == (3, 1, True)
    assert facts["ignored"] == (1, 0, False)


async def test_a_week_is_split_into_files_of_bounded_rows_and_bytes(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PART_EVENTS", 4)
    monkeypatch.setattr(archiving, "PART_BYTES", 1000)
    monkeypatch.setattr(archiving, "PAGE_EVENTS", 3)
    sizes = [10, 10, 10, 10, 10, 900, 200, 5000, 1]
    ids = await record_at(
        store,
        raw_db,
        *(arrival(f"evt_{place}", body=b"x" * size) for place, size in enumerate(sizes)),
    )
    archive = in_folder(tmp_path)
    files = await archived(store, archive)
    assert [(file.part, file.rows, file.body_bytes) for file in files] == [
        (0, 4, 40),
        (1, 2, 910),
        (2, 1, 200),
        (3, 1, 5000),
        (4, 1, 1),
    ]
    assert [file.first_event for file in files] == [ids[place] for place in (0, 4, 6, 7, 8)]
    assert [event.id for event in await rows_of(archive, files)] == sorted(ids)
    assert [file.path.rpartition("-")[0] for file in files[:2]] == [
        f"payloads/20260105/part-00000-{ids[0]}-{ids[3]}",
        f"payloads/20260105/part-00001-{ids[4]}-{ids[5]}",
    ]


async def test_a_second_run_adds_only_what_is_not_archived(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    archive = in_folder(tmp_path)
    assert not await store.has_unarchived(WEEK)
    await record_at(store, raw_db, *arrivals(3))
    assert await store.has_unarchived(WEEK)
    added: list[ArchiveItem] = []
    await archive_week(store, archive, WEEK, added.append)
    assert [file.rows for file in added] == [3]
    await archive_week(store, archive, WEEK, added.append)
    assert len(added) == 1
    assert not await store.has_unarchived(WEEK)
    await record_at(store, raw_db, arrival("late"))
    assert await store.has_unarchived(WEEK)
    await archive_week(store, archive, WEEK, added.append)
    assert [file.rows for file in added] == [3, 1]
    files = await store.archives(ArchiveQuery())
    assert [(file.week, file.part) for file in files] == [(WEEK, 0), (WEEK, 1)]


async def test_only_events_of_the_week_are_archived(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    times = {
        "before": WEEK.starts_at - timedelta(microseconds=1),
        "first": WEEK.starts_at,
        "last": WEEK.ends_at - timedelta(microseconds=1),
        "after": WEEK.ends_at,
    }
    for name, time in times.items():
        await record_at(store, raw_db, arrival(name), time=time)
    archive = in_folder(tmp_path)
    events = await rows_of(archive, await archived(store, archive))
    assert [event.event_id for event in events] == ["first", "last"]


async def test_a_week_that_is_not_over_is_refused(store: Store, tmp_path: Path) -> None:
    await record(store, arrival())
    with pytest.raises(NotInState, match="is not over"):
        await archive_week(store, in_folder(tmp_path), Week.of(datetime.now(UTC)))


@pytest.mark.parametrize("point", ["archive.written", "archive.verified"])
async def test_a_run_that_dies_before_the_record_leaves_a_file_that_no_record_names(
    store: Store, raw_db: RawDatabase, tmp_path: Path, point: str
) -> None:
    await record_at(store, raw_db, *arrivals(3))
    with pytest.raises(FailpointReached):
        await archive_week(store, in_folder(tmp_path, f"{point}:raise"), WEEK)
    assert await store.archives(ArchiveQuery()) == []
    assert await store.has_unarchived(WEEK)
    files = await archived(store, in_folder(tmp_path))
    assert [file.rows for file in files] == [3]
    assert count_files(tmp_path) == 2


async def test_a_run_that_dies_after_the_record_is_resumed_behind_it(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PART_EVENTS", 2)
    await record_at(store, raw_db, *arrivals(5))
    failpoints = Failpoints("archive.recorded:raise:2")
    archive = in_folder(tmp_path)
    with pytest.raises(FailpointReached):
        await archive_week(store, archive, WEEK, failpoints=failpoints)
    assert [file.rows for file in await archived(store, archive)] == [2, 2, 1]
    assert count_files(tmp_path) == 3


async def test_two_archivers_at_once_record_each_event_once(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PART_EVENTS", 3)
    ids = await record_at(store, raw_db, *arrivals(10))
    archive = in_folder(tmp_path)
    added: list[ArchiveItem] = []
    await asyncio.gather(*(archive_week(store, archive, WEEK, added.append) for _ in range(2)))
    files = await store.archives(ArchiveQuery(week=WEEK))
    assert [event.id for event in await rows_of(archive, files)] == sorted(ids)
    assert [file.part for file in files] == [0, 1, 2, 3]
    assert sum(file.rows for file in added) == len(ids)


async def test_an_archiver_that_was_too_late_goes_on_behind_the_other(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PART_EVENTS", 2)
    await record_at(store, raw_db, *arrivals(5))
    add_archive = store.add_archive

    async def be_late(file: ArchiveFile) -> None:
        monkeypatch.setattr(store, "add_archive", add_archive)
        assert await add_archive(file) is not None  # by the other archiver

    monkeypatch.setattr(store, "add_archive", be_late)
    own: list[ArchiveItem] = []
    await archive_week(store, in_folder(tmp_path), WEEK, own.append)
    assert [item.rows for item in own] == [2, 1]
    assert not await store.has_unarchived(WEEK)


async def test_a_week_is_over_an_hour_after_its_end(
    store: Store, subtests: pytest.Subtests
) -> None:
    """A transaction that began before the end may commit after it."""
    for minutes, is_over in ((-1, False), (59, False), (61, True)):
        with subtests.test(f"after {minutes} minutes"):
            ends_at = datetime.now(UTC) - timedelta(minutes=minutes)
            week = SimpleNamespace(label="20260105", starts_at=TIME, ends_at=ends_at)
            assert (await store.archive_position(cast(Week, week))).is_over == is_over


async def test_no_more_than_a_page_is_read_at_a_time(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PAGE_BYTES", 100)
    await record_at(store, raw_db, *(arrival(f"evt_{place}", body=b"x" * 40) for place in range(7)))
    sizes = []
    read = store.archive_page

    async def watched(*arguments: object, **limits: int) -> object:
        page = await read(*arguments, **limits)  # type: ignore[arg-type]
        sizes.append(sum(len(event.body) for event in page))
        return page

    monkeypatch.setattr(store, "archive_page", watched)
    assert len(await archived(store, in_folder(tmp_path))) == 1
    assert [size for size in sizes if size] == [80, 80, 80, 40]


async def test_a_file_that_was_damaged_truncated_or_removed_is_named(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    await record_at(store, raw_db, *arrivals(3))
    archive = in_folder(tmp_path)
    (file,) = await archived(store, archive)
    await archive.verify(file)
    path = tmp_path / file.path
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(ArchiveDamaged, match=rf"{file.path}: its SHA-256 is not the recorded one"):
        await archive.verify(file)
    path.write_bytes(content[:-1])
    with pytest.raises(ArchiveDamaged, match=r"it has \d+ bytes instead of \d+"):
        await rows_of(archive, [file])
    path.unlink()
    with pytest.raises(ArchiveDamaged, match="it is missing"):
        await archive.verify(file)


async def test_a_file_is_not_recorded_if_it_reads_back_otherwise(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_at(store, raw_db, *arrivals(3))
    archive = in_folder(tmp_path)
    put = archive._files.put

    async def put_damaged(path: str, source: Path) -> None:
        await put(path, source)
        stored = tmp_path / path
        stored.write_bytes(stored.read_bytes()[::-1])

    monkeypatch.setattr(archive._files, "put", put_damaged)
    with pytest.raises(ArchiveDamaged, match="The payloads are still in the ledger"):
        await archive_week(store, archive, WEEK)
    assert await store.archives(ArchiveQuery()) == []


async def test_a_file_is_not_recorded_if_parquet_changed_a_row(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of the file says nothing about that."""
    await record_at(store, raw_db, *arrivals(3))
    write = parquet.write

    def write_changed(lines: Path, target: Path, longest_line: int) -> None:
        lines.write_bytes(lines.read_bytes().replace(b'"deliveries":1', b'"deliveries":2', 1))
        write(lines, target, longest_line)

    monkeypatch.setattr(parquet, "write", write_changed)
    with pytest.raises(ArchiveDamaged, match="its rows are not those that were archived"):
        await archive_week(store, in_folder(tmp_path), WEEK)
    assert await store.archives(ArchiveQuery()) == []


async def test_a_file_in_a_folder_is_never_replaced(tmp_path: Path) -> None:
    files = in_folder(tmp_path)._files
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    await files.put("payloads/x", tmp_path / "first")
    with pytest.raises(ArchiveUnavailable, match="File exists"):
        await files.put("payloads/x", tmp_path / "second")
    assert [path.name for path in (tmp_path / "payloads").iterdir()] == ["x"]
    assert (tmp_path / "payloads" / "x").read_text() == "first"


async def test_a_folder_that_is_gone_is_not_created_again(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    """The disk may only be unmounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    archive = in_folder(folder)
    await record_at(store, raw_db, *arrivals(3))
    folder.rmdir()
    with pytest.raises(ArchiveUnavailable, match="No such file or directory"):
        await archive_week(store, archive, WEEK)
    assert not folder.exists()
    assert await store.has_unarchived(WEEK)


async def test_a_week_is_archived_by_files_of_its_own(
    store: Store, raw_db: RawDatabase, tmp_path: Path
) -> None:
    """An event of another week may have a lower id than those that are archived."""
    await record_at(store, raw_db, arrival("other"), time=TIME + timedelta(weeks=1))
    await record_at(store, raw_db, arrival("archived"))
    await archived(store, in_folder(tmp_path))
    assert not await store.has_unarchived(WEEK)
    assert await store.has_unarchived(Week.of(TIME + timedelta(weeks=1)))


async def test_a_temporary_folder_that_cannot_be_used_is_named(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_at(store, raw_db, arrival())
    archive = in_folder(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ArchiveUnavailable, match=r"gone cannot be used: No such file.* set TMPDIR"):
        await archive_week(store, archive, WEEK)
    assert await store.has_unarchived(WEEK)
