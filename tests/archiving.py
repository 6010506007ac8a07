"""Shortcuts for tests of the archive: events of a past week, and an archive in a folder."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from onceward.archive.location import make_archive
from onceward.archive.parquet_archive import ParquetArchive
from onceward.model.archive import ArchivedEvent, ArchiveItem, ArchiveQuery
from onceward.model.events import Arrival
from onceward.model.weeks import Week
from onceward.operate.archiving import archive_week
from onceward.ports import Store
from onceward.runtime.failpoints import Failpoints
from support.database import RawDatabase
from tests.factories import record

WEEK = Week.of(datetime(2026, 1, 7, tzinfo=UTC))
TIME = datetime(2026, 1, 7, 11, 30, 0, 123456, tzinfo=UTC)
SHIFTED = ("events", "payloads", "jobs")


def in_folder(folder: Path, failpoints: str = "") -> ParquetArchive:
    """Return an archive in a folder that exists."""
    return make_archive(folder.as_uri(), Failpoints(failpoints), {})


async def record_at(
    store: Store, raw_db: RawDatabase, *arrivals: Arrival, time: datetime = TIME
) -> list[int]:
    """Record events as if they had been received at a time; return their ids."""
    ids = [receipt.event for receipt in await record(store, *arrivals)]
    for table, column in (("events", "id"), ("payloads", "event"), ("jobs", "event")):
        raw_db.rows(
            f"UPDATE onceward.{table} SET received_at = {moment(raw_db, time)} "  # noqa: S608 - no outside data
            f"WHERE {column} IN ({', '.join(map(str, ids))})"
        )
    return ids


def moment(raw_db: RawDatabase, time: datetime) -> str:
    """Return an SQL expression for a time."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    microseconds = (time - epoch) // timedelta(microseconds=1)
    return str(microseconds) if raw_db.is_sqlite else f"timestamptz '{time.isoformat()}'"


def drop_payloads(raw_db: RawDatabase, *, events: bool = False) -> None:
    """Delete every payload, and the rows of the events too if asked for."""
    for table in ("payloads", *(("events", "jobs") if events else ())):
        raw_db.rows(f"DELETE FROM onceward.{table}")  # noqa: S608 - no outside data


async def archived(
    store: Store, archive: ParquetArchive, week: Week = WEEK
) -> tuple[ArchiveItem, ...]:
    """Archive a week and return its recorded files."""
    await archive_week(store, archive, week)
    return tuple(await store.archives(ArchiveQuery(week=week)))


async def rows_of(archive: ParquetArchive, files: Sequence[ArchiveItem]) -> list[ArchivedEvent]:
    """Return the events of some files."""
    return [event for file in files async for page in archive.read(file) for event in page]
