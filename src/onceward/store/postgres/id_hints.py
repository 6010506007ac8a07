"""Hints from the shared id cache, about deliveries that a process does not know."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import psycopg

from onceward.model.events import Arrival, Outcome, Receipt
from onceward.ports.id_cache import IdCache, RecordedDelivery
from onceward.runtime.error_text import describe
from onceward.runtime.log_fields import LogFields
from onceward.store.postgres.connections import Connection
from onceward.store.recent_events import RecentEvents

_log = logging.getLogger("onceward.store")

# A restore makes another history of the same events: another cluster, database, timeline or file.
LEDGER_IDENTITY: Final = """
    SELECT concat_ws(
        '/', (SELECT system_identifier FROM pg_control_system()),
        (SELECT oid FROM pg_database WHERE datname = current_database()),
        left(pg_walfile_name(pg_current_wal_lsn()), 8), pg_relation_filenode('onceward.routes')
    ) AS identity
"""
_UNAVAILABLE: Final = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.UndefinedFunction,
)
"""Some hosted databases lack one of the functions."""


class IdHints:
    """Asks the id cache about the deliveries of a batch, and adds those that it lacks."""

    def __init__(self, id_cache: IdCache | None) -> None:
        self._id_cache = id_cache
        self._identities: WeakKeyDictionary[Connection, tuple[int, str]] = WeakKeyDictionary()
        """For each connection, the file of the routes and the identity of the ledger."""
        self._is_reported = False

    async def find(
        self,
        connection: Connection,
        routes_file: int,
        arrivals: Sequence[Arrival],
        recent: RecentEvents,
    ) -> BatchHints:
        """Ask about the deliveries that repeat no recent event of this process."""
        if self._id_cache is None:
            return NO_HINTS
        unknown = [
            position
            for position, arrival in enumerate(arrivals)
            if recent.find_original(arrival) is None
        ]
        ledger = await self._identity(connection, routes_file)
        if not ledger or not unknown:
            return BatchHints(ledger, {})
        found = await self._id_cache.find(ledger, [arrivals[each] for each in unknown])
        return BatchHints(ledger, dict(zip(unknown, found, strict=True)))

    def add(
        self, hints: BatchHints, arrivals: Sequence[Arrival], receipts: Sequence[Receipt]
    ) -> None:
        """Remember the new events, and the duplicates that were asked about and not found.

        A conflict's body is not that of its event: skip it.
        """
        if self._id_cache is None or not hints.ledger:
            return
        recorded = [
            RecordedDelivery(arrival, receipt.event)
            for position, (arrival, receipt) in enumerate(zip(arrivals, receipts, strict=True))
            if receipt.outcome is Outcome.RECORDED
            or (receipt.outcome is Outcome.DUPLICATE and hints.lacks(position, receipt.event))
        ]
        if recorded:
            self._id_cache.add(hints.ledger, recorded)

    async def _identity(self, connection: Connection, routes_file: int) -> str:
        """Return the identity of the ledger that a connection leads to; empty if there is none."""
        known = self._identities.get(connection)
        if known is None or known[0] != routes_file:
            known = routes_file, await self._read_identity(connection)
            self._identities[connection] = known
        return known[1]

    async def _read_identity(self, connection: Connection) -> str:
        try:
            row = await (await connection.execute(LEDGER_IDENTITY)).fetchone()
        except _UNAVAILABLE as error:
            if not self._is_reported:
                self._is_reported = True
                reason = describe(error)
                message = "Redis is not used: the database does not say which ledger it is: %s"
                _log.warning(message, reason, extra=LogFields(error=reason))
            return ""
        return str(row["identity"]) if row else ""


class BatchHints:
    """The hints of the id cache for a batch: an event or None, by position."""

    def __init__(self, ledger: str, asked: dict[int, int | None]) -> None:
        self.ledger = ledger
        self.asked = asked
        self.any_found = any(event is not None for event in asked.values())

    def lacks(self, position: int, event: int) -> bool:
        """Return whether the cache was asked about a position and did not name its event."""
        return position in self.asked and self.asked[position] != event


NO_HINTS: Final = BatchHints("", {})
