"""The weeks of payloads that a statement reads, as constants of its plan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from onceward.runtime.sql_text import Sql

_FIRST: Final = b"timestamptz '-infinity'"
_END: Final = b"timestamptz 'infinity'"
_WEEK: Final = timedelta(weeks=1)


def within_weeks(statement: Sql, oldest: datetime, newest: datetime) -> bytes:
    """Return a statement that reads only payloads received between two times.

    A parameter would not do: the connection keeps one plan for all values, and that plan contains
    and locks every partition. The times are rounded to the weeks of the partitions, so that the
    text, and with it the plan, stays the same for a week.
    """
    bounds = {_FIRST: _monday(oldest), _END: _monday(newest) + _WEEK}
    text = statement.pyformat
    for marker, time in bounds.items():
        text = text.replace(marker, f"timestamptz '{time.isoformat()}'".encode())
    return text


def _monday(time: datetime) -> datetime:
    """Return the begin of a week in UTC."""
    day = time.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())
