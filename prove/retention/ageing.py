"""Let time pass: move events whose jobs have ended into the past, one batch at a time.

Each batch is one transaction, and fills weeks of its own: as in a real ledger, no payload appears
in a week that is already archived or dropped. A queued job is never moved, because its worker may
look for the payload at the time of the claim.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from support.database import RawDatabase

FIRST_BATCH = datetime(1980, 1, 7, tzinfo=UTC)
"""When the events of the first batch were received, about."""
BATCH_WEEKS = 5
"""The time from one batch to the next. One that spans a midnight has two weeks."""

_LOCKED = "FOR UPDATE SKIP LOCKED"
_RECENT = "received_at > {yesterday}"
_MOVABLE = (
    """
    SELECT e.id FROM onceward.events e JOIN onceward.jobs j ON j.event = e.id
    WHERE e.received_at > {yesterday} AND j.status <> 'queued' {locked}
    """,
    """
    SELECT e.id FROM onceward.events e
    WHERE e.received_at > {yesterday}
    AND NOT EXISTS (SELECT 1 FROM onceward.jobs j WHERE j.event = e.id) {locked}
    """,
)
_ENDED_LATE = """
    status <> 'queued' AND received_at < {yesterday} AND finished_at > {yesterday}
"""
_JOBS = "job IN (SELECT id FROM onceward.jobs WHERE event IN ({events}))"
_MOVES = (
    ("attempts", _JOBS, ("started_at", "ended_at")),
    ("effects", _JOBS, ("created_at", "updated_at", "used_at")),
    ("jobs", "event IN ({events})", ("received_at", "created_at", "finished_at", "available_at")),
    ("payloads", "event IN ({events})", ("received_at",)),
    ("events", "id IN ({events})", ("received_at", "processed_at")),
    ("jobs", _ENDED_LATE, ("finished_at",)),
    ("deliveries", _RECENT, ("received_at",)),
    ("rejections", _RECENT, ("received_at", "last_at")),
)
"""What is moved: a table, the condition of its rows, and its columns with times."""


class Ageing:
    """The batches of one ledger."""

    def __init__(self, ledger: RawDatabase) -> None:
        self.batches = 0
        self.batch_of: dict[int, int] = {}
        """The batch of each event that was moved."""
        self._ledger = ledger

    def move_batch(self) -> int:
        """Move what can be moved, and return the number of events. A busy database moves none."""
        now = datetime.now(UTC)
        target = FIRST_BATCH + timedelta(weeks=BATCH_WEEKS * self.batches)
        shift = timedelta(weeks=(now - target) // timedelta(weeks=1))
        try:
            with self._transaction() as run:
                events = self._move(run, now - timedelta(days=1), shift)
        except (psycopg.OperationalError, sqlite3.OperationalError):
            return 0  # a lock was not available in time
        self.batch_of |= dict.fromkeys(events, self.batches)
        self.batches += bool(events)
        return len(events)

    def _move(self, run: Any, yesterday: datetime, shift: timedelta) -> list[int]:
        values = {
            "yesterday": self._time(yesterday),
            "locked": "" if self._ledger.is_sqlite else _LOCKED,
        }
        events = [id_ for statement in _MOVABLE for (id_,) in run(statement.format(**values))]
        if not events:
            return []
        values["events"] = ", ".join(map(str, events))
        for table, condition, columns in _MOVES:
            moved = ", ".join(f"{column} = {column} - {self._span(shift)}" for column in columns)
            run(f"UPDATE onceward.{table} SET {moved} WHERE {condition.format(**values)}")  # noqa: S608 - no outside data
        return events

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._ledger.connection() as connection:
            is_sqlite = self._ledger.is_sqlite
            connection.execute("BEGIN IMMEDIATE" if is_sqlite else "SET LOCAL lock_timeout = '1s'")

            def run(statement: str) -> list[Any]:
                cursor = connection.execute(self._ledger.in_dialect(statement))
                return cursor.fetchall() if cursor.description else []

            yield run

    def _time(self, time: datetime) -> str:
        if self._ledger.is_sqlite:
            return str(int(time.timestamp() * 1_000_000))
        return f"timestamptz '{time.isoformat()}'"

    def _span(self, span: timedelta) -> str:
        if self._ledger.is_sqlite:
            return str(span // timedelta(microseconds=1))
        return f"interval '{span.total_seconds():.0f} seconds'"
