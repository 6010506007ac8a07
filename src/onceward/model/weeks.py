"""The weeks by which payloads are stored, archived and dropped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

WEEK: Final = timedelta(weeks=1)
_LABEL: Final = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Week:
    """An ISO week in UTC, from Monday to Monday: the unit that is archived and dropped."""

    monday: date

    def __post_init__(self) -> None:
        if self.monday.weekday() != 0:
            raise ValueError(f"{self.monday} is not a Monday")

    @classmethod
    def of(cls, time: datetime) -> Week:
        """Return the week that contains a time."""
        day = time.astimezone(UTC).date()
        return cls(day - timedelta(days=day.weekday()))

    @classmethod
    def parse(cls, text: str) -> Week | None:
        """Return the week that contains a day, such as 20260105 or 2026-01-05; None if invalid."""
        match = _LABEL.fullmatch(text)
        if match is None:
            return None
        try:
            year, month, day = map(int, match.groups())
            return cls.of(datetime(year, month, day, tzinfo=UTC))
        except (ValueError, OverflowError):
            return None

    @property
    def label(self) -> str:
        """The Monday, as in the names of partitions, folders and audit subjects: 20260105."""
        return f"{self.monday:%Y%m%d}"

    @property
    def starts_at(self) -> datetime:
        """The first moment of the week."""
        return datetime(self.monday.year, self.monday.month, self.monday.day, tzinfo=UTC)

    @property
    def ends_at(self) -> datetime:
        """The first moment of the next week."""
        return self.starts_at + WEEK

    def __str__(self) -> str:
        return self.label
