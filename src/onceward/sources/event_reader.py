"""Reads the events of a verified request, with what the proof covers in mind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from onceward.model.events import Identity
from onceward.sources.identify import IdentitySelectors, identify
from onceward.sources.presets import Preset
from onceward.sources.request import Request
from onceward.sources.schemes import BodyCoverage, Scheme, UrlCoverage
from onceward.sources.unpacking import EventLayout


class IdentifiedEvent(NamedTuple):
    """The identity of an event, its exact bytes, and what its two hashes are taken from."""

    identity: Identity
    body: bytes
    content: bytes
    """The body, or what is signed of it: it differs if a redelivery is a conflict."""
    covered: bytes | None
    """The covered values, if other bodies can have the same proof; None if it covers `content`."""


@dataclass(frozen=True, slots=True)
class EventReader:
    """Reads the events of a verified request. `make_event_reader` builds it."""

    layout: EventLayout
    selectors: IdentitySelectors
    content: Callable[[Request], bytes] | None
    """Returns the bytes that stand for the body in every hash, also ``body:sha256``."""
    covered: Callable[[Request], bytes] | None
    """Returns the covered values of an event, if other bodies can have the same proof."""

    def read(self, request: Request) -> list[IdentifiedEvent]:
        """Return the events of a verified request. Raises NoEventId if one has no usable id."""
        return [self._read_event(event) for event in self.layout.unpack(request)]

    def _read_event(self, event: Request) -> IdentifiedEvent:
        if self.content is not None:
            event.content = self.content(event)
        covered = None if self.covered is None else self.covered(event)
        return IdentifiedEvent(identify(self.selectors, event), event.body, event.content, covered)


def make_event_reader(preset: Preset, scheme: Scheme) -> EventReader:
    """Return a reader for requests of this preset and scheme.

    A changed body under the same id is a conflict. Where every form field is signed, all spellings
    of a form are one body. Where other bytes can have the same proof and another id, the covered
    values are read too: a second event with the same ones is a duplicate body. Where the URL is
    covered with the body, the scheme says whether it is a part of the event.
    """
    coverage, selectors = preset.coverage(scheme), preset.identity_selectors
    is_more_than_body = coverage.body is not BodyCoverage.BYTES or coverage.url is UrlCoverage.WHOLE
    has_own_content = coverage.is_whole and is_more_than_body
    may_change_id = not coverage.is_whole and not selectors.covers_id(coverage)
    return EventReader(
        layout=preset.layout,
        selectors=selectors.under(coverage),
        content=scheme.event_content if has_own_content else None,
        covered=scheme.event_content if may_change_id and not coverage.is_sender_only else None,
    )
