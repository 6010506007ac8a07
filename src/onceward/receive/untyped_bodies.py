"""Bodies without a type: whether they are JSON, for the log line about their events."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from onceward.model.events import Arrival
from onceward.sources.json_text import is_too_deep
from onceward.sources.source import Source

_decode = msgspec.json.Decoder(msgspec.Raw).decode


class UntypedBodies:
    """Looks at the first body without a type that each source receives.

    One body is enough: each process logs events without a type once for each source.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self.not_json: set[str] = set()
        """The sources that read the type from JSON, and whose body was none."""

    def look_at(self, source: Source, arrivals: Iterable[Arrival]) -> None:
        """Remember whether the first body of a source without a type is JSON."""
        if source.name in self._seen:
            return
        for arrival in arrivals:
            if not arrival.type:
                self._seen.add(source.name)
                reads_json = any("json:" in selector for selector in source.preset.types)
                if reads_json and not _is_json(arrival.body):
                    self.not_json.add(source.name)
                return


def _is_json(body: bytes) -> bool:
    try:
        return not is_too_deep(body) and _decode(body) is not None
    except ValueError:
        return False
