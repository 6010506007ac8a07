"""What this process recorded lately: a repetition is known before the ledger is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceward.model.events import Arrival, Outcome, Receipt

MOST: Final = 5_000
"""How many are known at least, and half of how many are at most."""


class RecentEvents:
    """Events by their keys, with the ledger's ids and the hash of their bodies.

    A hint: the ledger has the last word.
    """

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._older: dict[tuple[str, str], tuple[int, bytes]] = {}

    def event(self, arrival: Arrival) -> int | None:
        """The id of the event that this one repeats, with the same body."""
        key = arrival.source, arrival.event_id
        event, body_sha256 = self._events.get(key) or self._older.get(key) or (None, b"")
        return event if body_sha256 == arrival.body_sha256 else None

    def note(self, arrivals: Sequence[Arrival], receipts: Sequence[Receipt]) -> None:
        """These are in the ledger now; those that are in conflict with it under another body."""
        for arrival, receipt in zip(arrivals, receipts, strict=True):
            if receipt.outcome is not Outcome.CONFLICT:
                key = arrival.source, arrival.event_id
                self._events[key] = receipt.event, arrival.body_sha256
        if len(self._events) > MOST:
            self._events, self._older = {}, self._events
