"""A watch for processes that receive: reports events that no handler wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from onceward.errors import StoreUnavailable
from onceward.model.jobs import Route, UnroutedType
from onceward.ports.watching import UnroutedEvents
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable
from onceward.runtime.suggest import is_misspelling, is_respelling, nearest

_log = logging.getLogger("onceward.routing")

IGNORED_INTERVAL_SECONDS: Final = 5.0
READ_EVENTS: Final = 1_000
"""Events that one read looks at, the newest first."""

MAX_TYPES: Final = 1_000
"""Types to report and remember. A sender whose types are unlimited must not fill the log."""

ROUTED_EVENTS: Final = 10_000
"""Events among which one that matched a handler is looked for, before a new type is reported."""

MAX_REVIEWS_COUNTED: Final = 1_000
"""Events in review that the warning counts."""

MAX_PATTERNS: Final = 10
"""Patterns that one line lists."""

_SEPARATORS: Final = (".", "/", ":")
"""Separators in types. A pattern can end in ``*`` only after a dot."""


class Subscription(NamedTuple):
    """A route of a handler of this process. The label has the handler's name and line."""

    handler: str
    label: str
    route: Route


class IgnoredWatch:
    """Logs each type of events that no handler wants, once, with the pattern that may be meant.

    Only events that were recorded after the start count. `type_selectors` has the selectors of the
    type of each source, and `not_json` the sources with a body that this process could not read the
    type from. The owner may add more at any time. The events of `reviewed` sources wait for review.
    """

    def __init__(
        self,
        events: UnroutedEvents,
        subscriptions: Iterable[Subscription],
        type_selectors: Mapping[str, Sequence[str]],
        not_json: Collection[str] = (),
        reviewed: Collection[str] = (),
    ) -> None:
        self._events = events
        self._subscriptions = tuple(subscriptions)
        self._type_selectors = type_selectors
        self._not_json = not_json
        self._reviewed = frozenset(reviewed)
        self._in_review = 0
        self._reported: set[tuple[str, str]] = set()
        self._routed_sources: set[str] = set()
        """Sources of which an event matched a handler, or was reported to match none."""
        self._read_from = 0
        self._newest = 0

    async def start(self) -> None:
        """Skip the events that are recorded already. Raise StoreError."""
        for latest in await self._events.unrouted_types(0, limit=1):
            self._read_from = self._newest = latest.newest

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warning that events wait for review, if any do. Anyone may read it."""
        count = self._in_review
        if not count:
            return ()
        if count == 1:
            events, type_ = "1 event waits", "its type"
        else:
            more = " or more" if count == MAX_REVIEWS_COUNTED else ""
            events, type_ = f"{count}{more} events wait", "their type"
        warning = (
            f"{events} for review, because no handler wants {type_}: GET "
            "/admin/events?status=review lists them. Route each to a handler, or dismiss it."
        )
        return (warning,)

    async def refresh(self) -> None:
        """Count the events in review, and report new types of events that no handler wants."""
        try:
            self._in_review = await self._count_reviews()
            await self._refresh_types()
        except StoreUnavailable:
            return  # an outage is reported by those who write

    async def _count_reviews(self) -> int:
        if not self._reviewed:
            return 0
        return await self._events.events_in_review(limit=MAX_REVIEWS_COUNTED)

    async def _refresh_types(self) -> None:
        """Read the events that matched no handler since the read before last, and report them.

        Events may commit later than events with higher ids; the overlap finds those as well.
        """
        if len(self._reported) == MAX_TYPES:
            return
        unrouted = await self._events.unrouted_types(self._read_from, limit=READ_EVENTS)
        if any(self._is_news(each) for each in unrouted):
            self._routed_sources |= await self._events.routed_sources(limit=ROUTED_EVENTS)
        self._read_from = self._newest
        for each in unrouted:
            self._newest = max(self._newest, each.newest)
            if self._is_news(each):
                self._report_once(each)
                await asyncio.sleep(0)  # let requests in: there may be many types at once

    def _is_news(self, unrouted: UnroutedType) -> bool:
        key = unrouted.source, unrouted.type
        if key in self._reported or len(self._reported) == MAX_TYPES:
            return False
        # An event that matches was recorded by another process, before it knew of the handler.
        return not any(each.route.matches(*key) for each in self._subscriptions)

    def _report_once(self, unrouted: UnroutedType) -> None:
        source, shown = unrouted.source, printable(unrouted.type)
        self._reported.add((source, unrouted.type))
        fields = LogFields(source=source, type=shown)
        events = f"events of type '{shown}'" if shown else "events without a type"
        end = "wait for review" if source in self._reviewed else "end ignored"
        message = f"source {source!r}: {events} match no handler and {end}"
        advice = self._advice(source, unrouted.type, fields)
        if advice is None:
            _log.info("%s", message, extra=fields)
        else:
            _log.warning("%s; %s", message, advice, extra=fields)
        if len(self._reported) == MAX_TYPES:
            message = "%d types of events have matched no handler; no further types are logged"
            _log.warning(message, MAX_TYPES, extra=LogFields(count=MAX_TYPES))

    def _advice(self, source: str, type: str, fields: LogFields) -> str | None:
        """Return what is probably wrong and how to fix it, or None if nothing need be wrong."""
        candidates = [each for each in self._subscriptions if each.route.source in (None, source)]
        if not candidates:
            return None
        if not type:
            selectors = self._type_selectors.get(source)
            return _missing_type(source, selectors, is_json=source not in self._not_json)
        for each in candidates:
            pattern = intended_pattern(each.route, source, type)
            if pattern is not None:
                fields["handler"] = each.handler
                return _correction(each, type, pattern)
        if source in self._routed_sources:
            return None
        self._routed_sources.add(source)
        return _list_patterns(type, [each.route.pattern for each in candidates])


def _missing_type(source: str, selectors: Sequence[str] | None, *, is_json: bool) -> str:
    catch_all = f"write {_decorator('*', source)}"
    if selectors is None:  # not a source of this process
        return catch_all
    if not is_json:
        return (
            f"the source reads the type from {selectors[0]}, but the body is not JSON: correct the "
            f"sender, or {catch_all}, so that a job fails with the reason"
        )
    reads = f"the type from {selectors[0]}, which is absent" if selectors else "no type"
    return f"the source reads {reads}: set type= on the source, or {catch_all}"


def _correction(subscription: Subscription, type: str, pattern: str) -> str:
    """Return the fix for a pattern that is too short, or that spells the type in another way."""
    route, label = subscription.route, subscription.label
    example = _decorator(pattern, route.source)
    name = route.literal.removesuffix(".")
    if type == name or type.startswith(tuple(name + separator for separator in _SEPARATORS)):
        return f"did you mean {example} for {label}?"
    return f"did you mean '{route.pattern}' of {label}? If the sender is right, write {example}"


def _list_patterns(type: str, patterns: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(patterns))
    if similar := nearest(type, distinct):
        return f"no recent event of this source matched one; did you mean '{similar}'?"
    shown = ", ".join(f"'{pattern}'" for pattern in distinct[:MAX_PATTERNS])
    more = f" and {len(distinct) - MAX_PATTERNS} more" if len(distinct) > MAX_PATTERNS else ""
    return f"no recent event of this source matched one; the handlers want {shown}{more}"


def _decorator(pattern: str, source: str | None) -> str:
    limit = "" if source is None else f', source="{source}"'
    return f'@inbox.on("{printable(pattern)}"{limit})'


def intended_pattern(route: Route, source: str, type: str) -> str | None:
    """Return the pattern that a route nearly is, which matches the type; None if it is not near."""
    if route.source not in (None, source) or "*" in type:
        return None
    name = route.literal.removesuffix(".")
    parts = name.count(".") + 1
    head = ".".join(type.split(".")[:parts])
    if name == head or _is_spelled_alike(name, head):
        return type if head == type else f"{head}.*"
    is_prefix = type.startswith(tuple(name + separator for separator in _SEPARATORS))
    return type if is_prefix or _is_spelled_alike(name, type) else None


def _is_spelled_alike(name: str, type: str) -> bool:
    return is_misspelling(name, type) or is_respelling(name, type)
