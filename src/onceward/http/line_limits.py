"""Which log lines about failed requests are written.

Each endpoint has a limit for each status, and other paths have limits of their own: one line a
second. A client that had no line lately gets one beyond the limit, so that a flood from some
addresses does not hide a failure of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from onceward.http.addresses import network_of
from onceward.runtime.line_limit import LINE_INTERVAL_SECONDS, LineLimit

MAX_PATHS: Final = 100
"""Paths without an endpoint that are limited separately; further paths share one limit."""
MAX_CLIENTS: Final = 256
"""Clients that are remembered for an endpoint and a status, and for all other paths together."""
CLIENT_INTERVAL_SECONDS: Final = 60.0
"""How long a client has no second line beyond the limit."""


class FailedRequest(NamedTuple):
    """A refused request, as far as the limits on log lines need it.

    `route` is the path without the mount point.
    """

    path: str
    route: str
    status: int
    client: str


class _RecentClients:
    """The clients that had a line lately, oldest first."""

    def __init__(self) -> None:
        self._line_at: dict[str, float] = {}

    def add(self, client: str, now: float) -> bool:
        """Remember a client. Return False if it is known, or if there is no room for it."""
        key = network_of(client)
        if key not in self._line_at and len(self._line_at) < MAX_CLIENTS:
            self._line_at[key] = now
            return True
        displaced = key if key in self._line_at else next(iter(self._line_at))
        if now < self._line_at[displaced] + CLIENT_INTERVAL_SECONDS:
            return False
        del self._line_at[displaced]
        self._line_at[key] = now
        return True


@dataclass(slots=True)
class _Limit:
    """The limit of one kind of line, with the last line that was written."""

    clients: _RecentClients
    lines: LineLimit = field(default_factory=LineLimit)
    last: FailedRequest | None = None

    def take(self, request: FailedRequest, now: float) -> int | None:
        is_new = self.clients.add(request.client, now)
        if is_new and now < self.lines.quiet_until:
            return 0
        suppressed = self.lines.take(now)
        if suppressed is not None:
            self.last = request
        return suppressed


class RequestLineLimits:
    """The limits of the log lines: reserved for endpoints, a bounded number for other paths."""

    def __init__(self, endpoints: Iterable[str]) -> None:
        self._endpoints = frozenset(endpoints)
        self._reserved: dict[tuple[str, int], _Limit] = {}
        self._others: dict[str, _Limit] = {}
        self._other_clients = _RecentClients()
        self._rest = _Limit(self._other_clients)

    def take(self, request: FailedRequest, now: float) -> int | None:
        """Return how many lines were suppressed since the last one, or None if none is due."""
        if request.route in self._endpoints:
            key = request.route, request.status
            limit = self._reserved.get(key)
            if limit is None:
                limit = self._reserved[key] = _Limit(_RecentClients())
        else:
            limit = self._others.get(request.path) or self._add(request.path, now)
        return limit.take(request, now)

    def _add(self, path: str, now: float) -> _Limit:
        """Return a limit for a new path, in place of the oldest path if that is quiet."""
        if len(self._others) >= MAX_PATHS:
            oldest, limit = next(iter(self._others.items()))
            if now < limit.lines.quiet_until:
                return self._rest
            del self._others[oldest]
            self._rest.lines.suppressed += limit.lines.suppressed
        return self._others.setdefault(path, _Limit(self._other_clients))

    def take_ended(self, now: float) -> Iterator[tuple[FailedRequest | None, int]]:
        """Yield what was suppressed before a flood ended: the last line, and how many followed."""
        for limit in self._suppressing():
            if now >= limit.lines.quiet_until + LINE_INTERVAL_SECONDS:
                suppressed, limit.lines.suppressed = limit.lines.suppressed, 0
                yield limit.last, suppressed

    @property
    def has_suppressed(self) -> bool:
        """Whether any suppressed line is not accounted for yet."""
        return bool(self._suppressing())

    def _suppressing(self) -> list[_Limit]:
        limits = [*self._reserved.values(), *self._others.values(), self._rest]
        return [limit for limit in limits if limit.lines.suppressed]
