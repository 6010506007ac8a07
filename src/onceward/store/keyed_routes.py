"""The routes of the handlers whose jobs have an ordering key: which keys an event needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from onceward.model.events import Arrival
from onceward.model.jobs import Route
from onceward.work.ordering_keys import read_keys


class KeyedRoute(NamedTuple):
    """A route whose jobs have a key, and the path of the key in the payload."""

    path: str
    route: Route

    @classmethod
    def from_row(cls, path: str, pattern: str, source: str | None) -> Self:
        """Return the route of a row of the statement `keyed_routes`."""
        return cls(path, Route(pattern, source))


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
            if paths := {
                path: None
                for path, route in self._routes
                if route.matches(arrival.source, arrival.type)
            }:
                keys = read_keys(arrival.source, arrival.headers, arrival.body, paths)
                found += map(ArrivalKey, [position] * len(keys), paths, keys)
        return found
