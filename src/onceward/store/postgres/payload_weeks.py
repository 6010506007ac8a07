"""The weeks of payloads that a statement reads, as constants of its plan."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from onceward.model.weeks import Week
from onceward.runtime.sql_text import Sql

_FIRST: Final = b"timestamptz '-infinity'"
_END: Final = b"timestamptz 'infinity'"


def within_weeks(statement: Sql, oldest: datetime, newest: datetime) -> bytes:
    """Return a statement that reads only payloads received between two times.

    A parameter would not do: the connection keeps one plan for all values, and that plan contains
    and locks every partition. The times are rounded to the weeks of the partitions, so that the
    text, and with it the plan, stays the same for a week.
    """
    bounds = {_FIRST: Week.of(oldest).starts_at, _END: Week.of(newest).ends_at}
    text = statement.pyformat
    for marker, time in bounds.items():
        text = text.replace(marker, f"timestamptz '{time.isoformat()}'".encode())
    return text
