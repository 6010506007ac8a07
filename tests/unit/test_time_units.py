"""Times are stored as microseconds since 1970, and lose nothing."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from onceward.runtime.time_units import epoch_microseconds, from_epoch_microseconds


@pytest.mark.parametrize(
    ("time", "microseconds"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        # As a float of seconds, it would lose its last digit.
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799_999_999),
    ],
)
def test_every_microsecond_survives(time: datetime, microseconds: int) -> None:
    assert epoch_microseconds(time) == microseconds
    assert from_epoch_microseconds(microseconds) == time


def test_the_zone_of_a_time_does_not_matter() -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    assert epoch_microseconds(datetime(1970, 1, 1, 5, 30, tzinfo=zone)) == 0
