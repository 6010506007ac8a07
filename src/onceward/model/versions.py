"""Versions of the objects that events are about, and the newest one applied for each key."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

Version = Decimal | str
"""A number, which compares exactly, or a text, which compares by code point."""

VERSION_LIMIT_BYTES: Final = 1000
"""The limit for a version, in UTF-8 bytes of its text."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """The newest version applied for a key, and the event that had it.

    Equal versions are ordered by the ids of their events, so that every order of arrival ends with
    the same watermark; equal ids of two sources, by the names of the sources.
    """

    version: Version
    event_id: str
    source: str
    applied_at: datetime | None = field(default=None, compare=False)
    """When it was applied; None if it is not yet, or if an earlier version of Onceward did it."""

    @property
    def is_number(self) -> bool:
        """Whether the version is a number."""
        return isinstance(self.version, Decimal)

    def is_older_than(self, other: Watermark) -> bool:
        """Return whether this comes before another watermark of the same kind."""
        if self.version != other.version:
            return self.version < other.version  # type: ignore[operator] # both are of one kind
        return (self.event_id, self.source) < (other.event_id, other.source)


def version_json(version: Version) -> str:
    """Return a version as JSON, which tells a number from a text."""
    if isinstance(version, Decimal):
        return str(version)
    return json.dumps(version, ensure_ascii=False)


def parse_version(text: str) -> Version:
    """Return the version that `version_json` wrote."""
    if text.startswith('"'):
        parsed: str = json.loads(text)
        return parsed
    return Decimal(text)
