"""Maintenance: partitions ahead, and the end of what is kept long enough.

One elected process does it every hour, or `onceward maintain`. Each step is bounded and safe to run
twice: a process that dies in the middle leaves the rest to the next maintenance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from onceward.errors import (
    ArchiveDamaged,
    ArchiveError,
    ArchiveUnavailable,
    ConfigurationError,
    StoreBlocked,
)
from onceward.model.admin import OperatorAction
from onceward.model.archive import ArchiveItem, ArchiveQuery
from onceward.model.retention import Purgeable, UnfinishedJob
from onceward.model.weeks import Week
from onceward.operate.archive_files import check_files
from onceward.operate.archiving import archive_week
from onceward.ports import Store
from onceward.ports.archive import PayloadArchive
from onceward.runtime.clock import Clock
from onceward.runtime.failpoints import Failpoints
from onceward.runtime.log_fields import LogFields
from onceward.settings import Settings

_log = logging.getLogger("onceward.maintenance")

MAINTENANCE_INTERVAL_SECONDS: Final = 3600.0
PAGE_ROWS: Final = 50
"""Rows that one transaction of a purge looks at. While it runs, it takes a core of the database,
and a receiver that commits waits for its WAL too."""
PAUSES_PER_PAGE: Final = 9
"""The pause after a page, in units of the time that the page took."""
MAX_PAUSE_SECONDS: Final = 5.0
COUNTED_ROWS: Final = 1_000
"""Rows that one statement counts, if nothing is to be deleted."""
SHOWN_JOBS: Final = 3
"""The oldest jobs that a log line names, if rows are kept for them."""
USE_GRANULARITY: Final = timedelta(days=1)
"""A use of an effect's key is stored once a day, so that its last use may be a day later.

`marked_effect` and `load_call` have the same day, as `is_untouched`.
"""

NO_ARCHIVE: Final = (
    "payloads of this ledger are archived, but this process has no archive. Set archive, or "
    "ONCEWARD_ARCHIVE, as for the other processes"
)
_KEPT: Final = "payloads of the week %s are kept: %s"
ACTOR: Final = "onceward"
AUTHENTICATED_AS: Final = "maintenance"

SETTING_OF: Final[Mapping[Purgeable, str]] = {
    Purgeable.REJECTIONS: "rejection_days",
    Purgeable.DELIVERIES: "delivery_days",
    Purgeable.ATTEMPTS: "attempt_days",
    Purgeable.JOBS: "job_days",
    Purgeable.EFFECTS: "effect_days",
    Purgeable.EVENTS: "dedupe_window_days",
}
"""The setting that says how long the rows of each table are kept."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change to one part of the ledger, done or planned."""

    action: str
    """`create`, `archive`, `drop`, `purge`, or `keep` for what stays although it is old."""
    subject: str
    """A table, or a partition of one."""
    rows: int | None = None
    """The rows that went, so far; None if they are not counted."""
    before: datetime | None = None
    """Everything that goes is from before this time."""
    kept: int | None = None
    """The payloads that stay because a job needs them."""
    jobs: tuple[UnfinishedJob, ...] = ()
    """The oldest jobs for which rows are kept."""


Report = Callable[[Step], None]
"""Called with each step, and again with the same step while its rows increase."""


def ignore_step(_: Step) -> None:
    """Report nothing."""


class Maintenance:
    """Everything that is done to a ledger as time passes."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        failpoints: Failpoints,
        archive: Callable[[], PayloadArchive | None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._failpoints = failpoints
        self._archive = archive
        """Returns the archive of payloads, or None if they are dropped without one."""
        self._is_reason_logged = False
        self._failure = ""
        self._has_files = False
        """Whether the ledger has archived files."""
        self.needs_attention = False
        """Whether the last run was not done, or not all of it, and no other process does it."""

    async def run_if_elected(self) -> None:
        """Do the maintenance, unless another process does it or this one may not."""
        reason = await self.run()
        if reason and not self._is_reason_logged and not self._failure:
            self._is_reason_logged = True
            level = logging.WARNING if self.needs_attention else logging.INFO
            _log.log(level, "maintenance is not done here: %s", reason)

    async def run(self, report: Report = ignore_step) -> str:
        """Do the maintenance. Return why it, or a part of it, was not done, or an empty text."""
        self._failure, self.needs_attention = "", False
        async with self._store.elect() as election:
            if not election.is_elected:
                self.needs_attention = not election.is_elsewhere
                return election.reason
            now = await self._store.ledger_time()
            await self._look_for_files()
            await self._make_partitions(report)
            await self._drop_payloads(now, report)
            await self._drop_audit(now, report)
            async for step in self._kept_for_jobs(now):
                report(step)
                message = "%s from before %s are kept for %s; requeue or cancel what is not needed"
                jobs = ", ".join(map(str, step.jobs))
                _log.info(message, step.subject, f"{step.before:%Y-%m-%d}", jobs)
            for table in Purgeable:
                if (before := await self._horizon(table, now)) is not None:
                    await self._purge(table, before, report)
            await self._store.release_space()
        return self._failure

    def _fail(self, message: str, subject: str, error: Exception) -> None:
        """Log and remember why a part is left to the next maintenance; the others go on."""
        self._failure, self.needs_attention = message % (subject, error), True
        level = logging.WARNING if isinstance(error, StoreBlocked) else logging.ERROR
        _log.log(level, "%s", self._failure)

    async def plan(self) -> AsyncIterator[Step]:
        """Yield what the maintenance would archive, drop and delete now.

        Raise ConfigurationError or ArchiveUnavailable if the archive cannot work.
        """
        self._archive()
        now = await self._store.ledger_time()
        await self._look_for_files()
        if self._lacks_archive:
            raise ArchiveUnavailable(NO_ARCHIVE)
        if days := self.payload_days:
            before = now - timedelta(days=days)
            for week in await self._store.expired_weeks(before, with_default=True):
                if self._must_be_archived and await self._store.has_unarchived(week):
                    yield Step("archive", _subject(week))
                droppable, kept = await self._store.count_payloads(week)
                yield Step("drop", _subject(week), droppable, before, kept)
        if days := self._settings.audit_days:
            before = now - timedelta(days=days)
            for part in await self._store.expired_audit(before):
                yield Step("drop", part, before=before)
        async for step in self._kept_for_jobs(now):
            yield step
        for table in Purgeable:
            horizon = await self._horizon(table, now)
            if horizon is not None and (rows := await self._count(table, horizon)):
                yield Step("purge", table, rows, horizon)

    async def _kept_for_jobs(self, now: datetime) -> AsyncIterator[Step]:
        """Yield what is old enough to go and stays for jobs that are not over."""
        if days := self.payload_days:
            before = now - timedelta(days=days)
            if jobs := await self._store.unfinished_jobs(Week.of(before).starts_at, SHOWN_JOBS):
                yield Step("keep", "payloads", before=before, jobs=tuple(jobs))
        if days := self._settings.effect_days:
            before = now - timedelta(days=days)
            jobs = await self._store.unfinished_jobs(now - USE_GRANULARITY, SHOWN_JOBS)
            if jobs:
                yield Step("keep", Purgeable.EFFECTS, before=before, jobs=tuple(jobs))

    @property
    def payload_days(self) -> int:
        """How long payloads are kept: never longer than their events. 0 keeps them."""
        days = (self._settings.payload_days, self._settings.dedupe_window_days)
        return min((each for each in days if each), default=0)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return a warning for everyone to see, if a part of the last maintenance failed."""
        return ("Maintenance was not finished: the log has the reason.",) if self._failure else ()

    async def _look_for_files(self) -> None:
        self._has_files = bool(await self._store.archives(ArchiveQuery(limit=1)))

    @property
    def _lacks_archive(self) -> bool:
        """Whether other processes archive payloads, and this one does not."""
        return self._has_files and not self._settings.archive

    @property
    def _must_be_archived(self) -> bool:
        """Whether payloads must be in a recorded file before they go."""
        return self._has_files or bool(self._settings.archive)

    async def _make_partitions(self, report: Report) -> None:
        try:
            for name in await self._store.make_partitions():
                report(Step("create", name))
        except StoreBlocked as error:
            self._fail("%s: %s", "partitions", error)

    async def _drop_payloads(self, now: datetime, report: Report) -> None:
        """Archive and drop old payloads, as far as the archive and the locks allow."""
        if not (days := self.payload_days):
            return
        before = now - timedelta(days=days)
        for week in await self._store.expired_weeks(before):
            try:
                if (archive := self._archive()) is not None:
                    await self._archive_week(archive, week, report)
                    await check_files(self._store, archive, week)
                elif self._lacks_archive:
                    raise ArchiveUnavailable(NO_ARCHIVE)
                if week in await self._store.expired_weeks(before):  # it may be restored by now
                    await self._drop_week(week, before, report)
            except ArchiveDamaged as error:  # the files of the other weeks may be intact
                self._fail(_KEPT, week.label, error)
            except (ArchiveError, ConfigurationError) as error:  # a folder may be gone since
                self._fail(_KEPT, week.label, error)
                return
            except StoreBlocked as error:
                self._fail("%s: %s", _subject(week), error)
                return

    async def _archive_week(self, archive: PayloadArchive, week: Week, report: Report) -> None:
        rows = 0

        def count(item: ArchiveItem) -> None:
            nonlocal rows
            rows += item.rows
            report(Step("archive", _subject(week), rows))

        await archive_week(self._store, archive, week, count, failpoints=self._failpoints)

    async def _drop_week(self, week: Week, before: datetime, report: Report) -> None:
        action = _action(f"older than {self.payload_days} days (payload_days)")
        gone = await self._store.drop_payloads(
            week, action, must_be_archived=self._must_be_archived
        )
        report(Step("drop", _subject(week), gone.dropped, before, gone.kept))
        kept = f"; {gone.kept} kept for jobs" if gone.kept else ""
        _log.info("payloads of the week %s dropped%s", week.label, kept)

    async def _drop_audit(self, now: datetime, report: Report) -> None:
        if not (days := self._settings.audit_days):
            return
        before = now - timedelta(days=days)
        action = _action(f"older than {days} days (audit_days)")
        for part in await self._store.expired_audit(before):
            try:
                await self._store.drop_audit(part, before, action)
            except StoreBlocked as error:
                self._fail("%s: %s", part, error)
                return
            report(Step("drop", part, before=before))
            _log.info("audit entries dropped: %s", part)

    async def _horizon(self, table: Purgeable, now: datetime) -> datetime | None:
        """Return the time before which the rows of a table may go; None if all are kept."""
        days = getattr(self._settings, SETTING_OF[table])
        if not days:
            return None
        if table is not Purgeable.EFFECTS:
            return now - timedelta(days=days)
        # A job that may still run must find the keys that it would have found when it was created.
        oldest = await self._store.unfinished_jobs(now, 1)
        start = oldest[0].received_at if oldest else now
        return start - timedelta(days=days) - USE_GRANULARITY

    async def _purge(self, table: Purgeable, before: datetime, report: Report) -> None:
        setting = SETTING_OF[table]
        days = getattr(self._settings, setting)
        action: OperatorAction | None = _action(f"older than {days} days ({setting})")
        purged = 0
        position: int | None = 0
        while position is not None:
            started = self._clock.monotonic()
            progress = await self._store.purge(
                table,
                position,
                limit=PAGE_ROWS,
                before=before,
                action=action,
                must_be_archived=self._must_be_archived,
            )
            position = progress.next
            if progress.rows:
                purged += progress.rows
                action = None  # one entry covers all pages: it has the time before which rows went
                report(Step("purge", table, purged, before))
                # Receivers and workers get most of the database.
                pause = PAUSES_PER_PAGE * (self._clock.monotonic() - started)
                await _pause(min(pause, MAX_PAUSE_SECONDS))
        if purged:
            message = "%d %s purged: older than %d days"
            _log.info(message, purged, table, days, extra=LogFields(count=purged))

    async def _count(self, table: Purgeable, before: datetime) -> int:
        rows = 0
        position: int | None = 0
        while position is not None:
            progress = await self._store.count_old(
                table,
                position,
                limit=COUNTED_ROWS,
                before=before,
                must_be_archived=self._must_be_archived,
            )
            rows += progress.rows
            position = progress.next
        return rows


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _action(reason: str) -> OperatorAction:
    return OperatorAction(ACTOR, AUTHENTICATED_AS, reason)


def _subject(week: Week) -> str:
    return f"payloads_{week.label}"
