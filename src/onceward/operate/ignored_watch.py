"""A watch for processes that receive: reports types of events that no handler wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from onceward.errors import StoreUnavailable
from onceward.model.jobs import Route, UnroutedType
from onceward.ports import UnroutedEvents
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable
from onceward.runtime.suggest import is_misspelling

_log = logging.getLogger("onceward.routing")

IGNORED_INTERVAL_SECONDS: Final = 5.0
READ_EVENTS: Final = 1_000
"""Events that one read looks at, the newest first."""

MAX_TYPES: Final = 1_000
"""Types to report and remember. A sender whose types are unlimited must not fill the log."""

_OTHER_SEPARATORS: Final = ("/", ":")
"""Separators that providers use in types, and after which a pattern cannot end in ``*``."""


class Subscription(NamedTuple):
    """A route of a handler of this process. The label has the handler's name and line."""

    handler: str
    label: str
    route: Route


class IgnoredWatch:
    """Logs each type of events that ends `ignored`, once, with the pattern that may be meant.

    Only events that were recorded after the start count.
    """

    def __init__(self, events: UnroutedEvents, subscriptions: Iterable[Subscription]) -> None:
        self._events = events
        self._subscriptions = tuple(subscriptions)
        self._reported: set[tuple[str, str]] = set()
        self._read_from = 0
        self._newest = 0

    async def start(self) -> None:
        """Skip the events that are recorded already. Raise StoreError."""
        for latest in await self._events.unrouted_types(0, limit=1):
            self._read_from = self._newest = latest.newest

    async def refresh(self) -> None:
        """Read the events that matched no handler since the read before last, and report them.

        Events may commit later than events with higher ids; the overlap finds those as well.
        """
        if len(self._reported) == MAX_TYPES:
            return
        try:
            unrouted = await self._events.unrouted_types(self._read_from, limit=READ_EVENTS)
        except StoreUnavailable:
            return  # an outage is reported by those who write
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
        key = unrouted.source, unrouted.type
        self._reported.add(key)
        _report(*key, self._subscriptions)
        if len(self._reported) == MAX_TYPES:
            message = "%d types of events have matched no handler; no further types are logged"
            _log.warning(message, MAX_TYPES, extra=LogFields(count=MAX_TYPES))


def _report(source: str, type: str, subscriptions: Sequence[Subscription]) -> None:
    shown = printable(type)
    events = f"events of type '{shown}'" if type else "events without a type"
    message = f"source {source!r}: {events} match no handler and end ignored"
    fields = LogFields(source=source, type=shown)
    for each in subscriptions:
        pattern = intended_pattern(each.route, source, type)
        if pattern is not None:
            fields["handler"] = each.handler
            example = _decorator(pattern, each.route)
            text = "%s; did you mean %s for %s?"
            _log.warning(text, message, example, each.label, extra=fields)
            return
    _log.info("%s", message, extra=fields)


def _decorator(pattern: str, route: Route) -> str:
    source = "" if route.source is None else f', source="{route.source}"'
    return f'@inbox.on("{printable(pattern)}"{source})'


def intended_pattern(route: Route, source: str, type: str) -> str | None:
    """Return the pattern that a route nearly is, which matches the type; None if it is not near."""
    if route.source not in (None, source) or "*" in type:
        return None
    if not type:
        return "*" if route.source == source else None
    name = route.literal.removesuffix(".")
    parts = name.count(".") + 1
    head = ".".join(type.split(".")[:parts])
    if name == head or is_misspelling(name, head):
        return type if head == type else f"{head}.*"
    is_prefix = type.startswith(tuple(name + separator for separator in _OTHER_SEPARATORS))
    return type if is_prefix or is_misspelling(name, type) else None
