"""Units of time: those of options, such as ``24h`` or ``100/m``, and microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""The seconds of each unit, shortest first."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def epoch_microseconds(time: datetime) -> int:
    """Return the microseconds from 1970 to a time. Exact, unlike `datetime.timestamp`."""
    return (time - _EPOCH) // _MICROSECOND


def from_epoch_microseconds(microseconds: int) -> datetime:
    """Return a time in UTC, exactly."""
    return _EPOCH + timedelta(microseconds=microseconds)
