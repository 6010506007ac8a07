"""The routes for which receivers read payloads: those with a filter, and those with a key."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Self

from onceward.errors import StoreBlocked, Unwritable
from onceward.model.events import Arrival
from onceward.model.jobs import Route
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import printable
from onceward.work.definition.filters import filter_text, missing_path, other_kind, passes
from onceward.work.definition.ordering_keys import keys_in
from onceward.work.payloads.payload import UNDECODABLE, read_document

_NOTHING_THERE: Final = (
    "source %r: an event of type '%s' has nothing at %r, so that the filter `when %s` rejects it; "
    "compare the path with the payload"
)

_OTHER_KIND: Final = (
    "source %r: an event of type '%s' has %s at %r, and the filter `when %s` has %s, so that it "
    "rejects the event; nothing is converted: change the value in the filter"
)

_log = logging.getLogger("onceward.routing")


class PayloadRoute(NamedTuple):
    """A route with a filter, or whose jobs have a key: then with the path of the key."""

    path: str | None
    route: Route

    @classmethod
    def from_row(cls, path: str | None, filter: str, pattern: str, source: str | None) -> Self:
        """Return the route of a row of the statement `payload_routes`."""
        return cls(path, Route(pattern, source, filter))


class ArrivalKey(NamedTuple):
    """The key of one event at one path. `position` counts the deliveries of a batch from 1."""

    position: int
    path: str
    key: str | None


class FilterVerdict(NamedTuple):
    """Whether a filter lets one event pass. `position` counts as in `ArrivalKey`."""

    position: int
    filter: str
    passes: bool


class Readings(NamedTuple):
    """The keys in the payloads of a batch, and the verdicts of the filters."""

    keys: Sequence[ArrivalKey] = ()
    verdicts: Sequence[FilterVerdict] = ()


class PayloadRoutes:
    """The routes that a process knows."""

    def __init__(self, routes: Iterable[PayloadRoute] = ()) -> None:
        self._routes = tuple(routes)
        self._settled_filters: set[str] = set()
        """Filters whose paths an event had, so that they are right, and those warned about."""

    def replace(self, routes: Iterable[PayloadRoute]) -> None:
        """Replace the routes by those that the ledger has now."""
        self._routes = tuple(routes)

    @property
    def has_filters(self) -> bool:
        """Whether one of the routes has a filter."""
        return any(each.route.filter for each in self._routes)

    def read(self, arrivals: Sequence[Arrival]) -> Readings:
        """Return the key of each delivery at each path, and the verdict of each filter.

        Only the routes of its source and type count. If a filter cannot be read, raise StoreBlocked
        for a single delivery, and Unwritable for several: the others can be recorded without it.
        """
        try:
            return self._read(arrivals)
        except StoreBlocked as error:
            if len(arrivals) == 1:
                raise
            raise Unwritable(str(error)) from error

    def _read(self, arrivals: Sequence[Arrival]) -> Readings:
        if not self._routes:
            return Readings()
        keys: list[ArrivalKey] = []
        verdicts: list[FilterVerdict] = []
        for position, arrival in enumerate(arrivals, 1):
            matching = [
                each for each in self._routes if each.route.matches(arrival.source, arrival.type)
            ]
            if not matching:
                continue
            paths = list(dict.fromkeys(path for path, _ in matching if path is not None))
            filters = dict.fromkeys(route.filter for _, route in matching if route.filter)
            document = read_document(arrival.source, arrival.headers, arrival.body)
            found = keys_in(document, paths)
            keys += map(ArrivalKey, [position] * len(paths), paths, found)
            for each in filters:
                verdicts.append(FilterVerdict(position, each, passes(each, document)))
                self._check_paths(each, arrival, document)
        return Readings(keys, verdicts)

    def _check_paths(self, filter: str, arrival: Arrival, document: Any) -> None:
        """Warn once if a path leads nowhere, unless an earlier event had it: it may be misspelled.

        Warn as well if the value there is of another kind than the filter's: no event will match.
        A body that cannot be decoded says nothing about a path.
        """
        if filter in self._settled_filters or document is UNDECODABLE:
            return
        self._settled_filters.add(filter)
        shown, text = printable(arrival.type), filter_text(filter)
        fields = LogFields(source=arrival.source, type=shown)
        if (path := missing_path(filter, document)) is not None:
            _log.warning(_NOTHING_THERE, arrival.source, shown, path, text, extra=fields)
        elif (other := other_kind(filter, document)) is not None:
            path, found, wanted = other
            values = arrival.source, shown, found, path, text, wanted
            _log.warning(_OTHER_KIND, *values, extra=fields)
