"""The routes of the handlers whose jobs have an ordering key: which keys an event needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onceward.model.events import Arrival
from onceward.work.ordering_keys import read_keys


class KeyedRoute(NamedTuple):
    """A route, with the path of the key in the payload. A `source` of None means any source."""

    path: str
    source: str | None
    type: str
    is_prefix: bool

    def matches(self, arrival: Arrival) -> bool:
        """Return whether an event gets a job with a key."""
        if self.source not in (None, arrival.source):
            return False
        return arrival.type.startswith(self.type) if self.is_prefix else arrival.type == self.type


class ArrivalKey(NamedTuple):
    """The key of one event at one path. `position` counts the deliveries of a batch from 1."""

    position: int
    path: str
    key: str | None


class KeyedRoutes:
    """The routes that a process knows."""

    def __init__(self, routes: Iterable[KeyedRoute] = ()) -> None:
        self._routes = tuple(routes)

    def replace(self, routes: Iterable[KeyedRoute]) -> None:
        """Replace the routes by those that the ledger has now."""
        self._routes = tuple(routes)

    def keys(self, arrivals: Sequence[Arrival]) -> list[ArrivalKey]:
        """Return the key of each delivery at each path for which it gets a job."""
        if not self._routes:
            return []
        found: list[ArrivalKey] = []
        for position, arrival in enumerate(arrivals, 1):
            if paths := {route.path: None for route in self._routes if route.matches(arrival)}:
                keys = read_keys(arrival.source, arrival.headers, arrival.body, paths)
                found += map(ArrivalKey, [position] * len(keys), paths, keys)
        return found
