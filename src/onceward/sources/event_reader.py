"""Reads the events of a verified request, with what the proof covers in mind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from onceward.model.events import Identity
from onceward.sources.identify import IdentitySelectors, identify
from onceward.sources.presets import Preset
from onceward.sources.request import Request
from onceward.sources.schemes import BodyCoverage, Scheme
from onceward.sources.unpacking import EventLayout


class IdentifiedEvent(NamedTuple):
    """The identity of an event, its exact bytes, and the bytes from which its hash is taken."""

    identity: Identity
    body: bytes
    content: bytes


@dataclass(frozen=True, slots=True)
class EventReader:
    """Reads the events of a verified request. `make_event_reader` builds it."""

    layout: EventLayout
    selectors: IdentitySelectors
    content: Callable[[Request], bytes] | None
    """Returns the bytes from which the hash of an event is taken; None for its body."""
    identifies_by_content: bool
    """Whether ``body:sha256`` hashes the covered values instead of the body."""

    def read(self, request: Request) -> list[IdentifiedEvent]:
        """Return the events of a verified request. Raises NoEventId if one has no usable id."""
        return [self._read_event(event) for event in self.layout.unpack(request)]

    def _read_event(self, event: Request) -> IdentifiedEvent:
        content = event.body if self.content is None else self.content(event)
        if self.identifies_by_content:
            event.content = content
        return IdentifiedEvent(identify(self.selectors, event), event.body, content)


def make_event_reader(preset: Preset, scheme: Scheme) -> EventReader:
    """Return a reader for requests of this preset and scheme.

    The hash of an event is that of its bytes, so that a changed body under the same id is a
    conflict. It is that of the covered values where other bytes can have the same proof and
    another id: the second event then has the hash of the first, and is flagged.
    """
    coverage, selectors = preset.coverage(scheme), preset.identity_selectors
    has_spellings = coverage.is_whole and coverage.body is not BodyCoverage.BYTES
    may_change_id = not coverage.is_whole and not selectors.covers_id(coverage)
    hashes_values = has_spellings or (may_change_id and not coverage.is_sender_only)
    return EventReader(
        layout=preset.layout,
        selectors=selectors.under(coverage),
        content=scheme.event_content if hashes_values else None,
        identifies_by_content=has_spellings,
    )
