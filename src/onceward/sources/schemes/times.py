"""Timestamps: their exact formats, and the window around the current time.

A format is exact, so that signed text which contains a timestamp has one reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from onceward.errors import RejectionCause, SignatureRejected

DAY_SECONDS: Final = 86_400
_SECONDS_DIGITS: Final = 10
_MILLISECONDS_DIGITS: Final = 13
_EXCESS_FRACTION_DIGITS: Final = re.compile(r"(\.\d{6})\d+")

TimeFormat = Literal[
    "seconds", "milliseconds", "seconds_or_milliseconds", "iso", "iso_zone_optional"
]


@dataclass(frozen=True, slots=True)
class TimeStyle:
    """One way to write a time."""

    description: str
    pattern: bytes
    """A regular expression that matches all timestamps and nothing else."""
    parse: Callable[[bytes], float | None]
    format: Callable[[float], str]
    may_continue_with: bytes = b""
    """Bytes that may follow one timestamp and still belong to a longer one."""
    has_marks: bool = False
    """Whether a timestamp can be found in text: it is more than a run of digits."""


def _parse_seconds(text: bytes) -> float | None:
    return int(text) if len(text) == _SECONDS_DIGITS and text.isdigit() else None


def _parse_milliseconds(text: bytes) -> float | None:
    return int(text) / 1000 if len(text) == _MILLISECONDS_DIGITS and text.isdigit() else None


def _parse_either(text: bytes) -> float | None:
    seconds = _parse_seconds(text)
    return _parse_milliseconds(text) if seconds is None else seconds


_LOCAL_ISO: Final = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
_ZONE: Final = rb"(?:Z|[+-][0-9]{2}:[0-9]{2})"


def _iso_parser(pattern: bytes) -> Callable[[bytes], float | None]:
    matches = re.compile(pattern).fullmatch

    def parse(text: bytes) -> float | None:
        if not matches(text):
            return None
        try:
            time = datetime.fromisoformat(_EXCESS_FRACTION_DIGITS.sub(r"\1", text.decode()))
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None

    return parse


def _format_iso(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z")


TIME_STYLES: Final[dict[TimeFormat, TimeStyle]] = {
    "seconds": TimeStyle(
        "a time in seconds, in 10 digits",
        rb"[0-9]{10}",
        _parse_seconds,
        lambda now: str(int(now)),
    ),
    "milliseconds": TimeStyle(
        "a time in milliseconds, in 13 digits",
        rb"[0-9]{13}",
        _parse_milliseconds,
        lambda now: str(int(now * 1000)),
    ),
    "seconds_or_milliseconds": TimeStyle(
        "a time in seconds or milliseconds, in 10 or 13 digits",
        rb"(?:[0-9]{13}|[0-9]{10})",
        _parse_either,
        lambda now: str(int(now)),
        may_continue_with=b"0123456789",
    ),
    "iso": TimeStyle(
        "an ISO 8601 date and time with seconds and a zone",
        _LOCAL_ISO + _ZONE,
        _iso_parser(_LOCAL_ISO + _ZONE),
        _format_iso,
        has_marks=True,
    ),
    "iso_zone_optional": TimeStyle(
        "an ISO 8601 date and time with seconds",
        _LOCAL_ISO + _ZONE + b"?",
        _iso_parser(_LOCAL_ISO + _ZONE + b"?"),
        _format_iso,
        may_continue_with=b".0123456789Z+-",
        has_marks=True,
    ),
}


def describe_window(tolerance_seconds: int) -> str:
    """Return a tolerance in days if it is a number of them, else in seconds."""
    days, rest = divmod(tolerance_seconds, DAY_SECONDS)
    return f"{tolerance_seconds} s" if rest else f"{days} days"


def parse_timestamp(text: bytes, style: TimeStyle) -> float:
    """Return the time of a timestamp. Raises SignatureRejected unless its format is exact."""
    time = style.parse(text)
    if time is None:
        raise SignatureRejected(
            f"the timestamp is not {style.description}", RejectionCause.TIMESTAMP
        )
    return time


def check_window(signed_at: float, now: float, tolerance_seconds: int | None) -> None:
    """Raise SignatureRejected if a signed time is further from now than the tolerance."""
    if tolerance_seconds is None:
        return
    seconds_off = abs(now - signed_at)
    if not seconds_off <= tolerance_seconds:
        off = f"{round(seconds_off, 1):.12g}"
        raise SignatureRejected(
            f"the timestamp is {off} s off; the tolerance is {tolerance_seconds} s",
            RejectionCause.TIMESTAMP,
        )
