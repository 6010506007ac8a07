"""The recorded files of the archive are listed in order, page by page, and filtered."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from onceward.model.archive import ArchiveItem, ArchiveQuery
from onceward.model.weeks import Week
from onceward.operate import archive_files, archiving
from onceward.operate.archive_files import list_files
from onceward.ports import Store
from support.database import RawDatabase
from tests.archiving import TIME, archived, in_folder, record_at
from tests.factories import arrivals

WEEKS = [Week.of(TIME + timedelta(weeks=number)) for number in range(3)]


@pytest.fixture
async def files(
    store: Store, raw_db: RawDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[ArchiveItem]:
    """Archive two files of two events for each of three weeks, the latest week first."""
    monkeypatch.setattr(archiving, "PART_EVENTS", 2)
    found: dict[Week, Sequence[ArchiveItem]] = {}
    for week in reversed(WEEKS):
        batch = arrivals(4, prefix=week.label)
        await record_at(store, raw_db, *batch, time=week.starts_at)
        found[week] = await archived(store, in_folder(tmp_path), week)
    return [file for week in WEEKS for file in found[week]]


async def listed(store: Store, query: ArchiveQuery) -> list[ArchiveItem]:
    return [file async for file in list_files(store, query)]


async def test_every_file_is_listed_once_in_the_order_of_weeks_and_parts(
    store: Store,
    files: list[ArchiveItem],
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    assert [(file.week, file.part) for file in files] == [
        (w, part) for w in WEEKS for part in (0, 1)
    ]
    for limit in (1, 2, 5, 6, 7):
        with subtests.test(f"pages of {limit}"):
            monkeypatch.setattr(archive_files, "_LIST_LIMIT", limit)
            assert await listed(store, ArchiveQuery()) == files


async def test_a_page_follows_the_file_that_it_names(
    store: Store, files: list[ArchiveItem]
) -> None:
    assert await store.archives(ArchiveQuery(limit=2)) == files[:2]
    assert await store.archives(ArchiveQuery(after=files[1].id, limit=3)) == files[2:5]
    assert await store.archives(ArchiveQuery(after=files[-1].id)) == []
    assert await store.archives(ArchiveQuery(week=WEEKS[1], after=files[2].id)) == files[3:4]


async def test_files_are_filtered_by_week(store: Store, files: list[ArchiveItem]) -> None:
    for number, week in enumerate(WEEKS):
        assert await listed(store, ArchiveQuery(week=week)) == files[2 * number : 2 * number + 2]
    assert await listed(store, ArchiveQuery(week=Week.of(TIME - timedelta(weeks=1)))) == []


async def test_files_are_filtered_by_the_id_of_an_event(
    store: Store, files: list[ArchiveItem]
) -> None:
    for file in files:
        for event in (file.first_event, file.last_event):
            assert await listed(store, ArchiveQuery(event=event)) == [file]
    beyond = max(file.last_event for file in files) + 1
    assert await listed(store, ArchiveQuery(event=beyond)) == []
    assert await listed(store, ArchiveQuery(week=WEEKS[0], event=files[-1].first_event)) == []
    event = files[1].first_event
    assert await listed(store, ArchiveQuery(week=WEEKS[0], event=event)) == [files[1]]
