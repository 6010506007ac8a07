"""The events that this process recorded last: it recognises their duplicates without a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceward.model.events import Arrival, Outcome, Receipt

GENERATION_EVENTS: Final = 5_000
"""Events in a generation. Two are kept: the current one and the one before."""


class RecentEvents:
    """The ledger ids and body hashes of the last events, by their keys.

    Only a hint: the ledger checks it and has the last word.
    """

    def __init__(self) -> None:
        self._current: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._previous: dict[tuple[str, str], tuple[int, bytes]] = {}

    def may_repeat(self, arrivals: Sequence[Arrival]) -> bool:
        """Return whether any key is that of a recent event, or of another arrival."""
        keys = {arrival[:2] for arrival in arrivals}
        return len(keys) < len(arrivals) or not (
            self._current.keys().isdisjoint(keys) and self._previous.keys().isdisjoint(keys)
        )

    def find_original(self, arrival: Arrival) -> int | None:
        """Return the id of the recent event with the same key and body."""
        key = arrival.source, arrival.event_id
        event, body_sha256 = self._current.get(key) or self._previous.get(key) or (None, b"")
        return event if body_sha256 == arrival.body_sha256 else None

    def add(self, arrivals: Sequence[Arrival], receipts: Sequence[Receipt]) -> None:
        """Remember committed deliveries. A conflict's body is not that of its event: skip it."""
        for arrival, receipt in zip(arrivals, receipts, strict=True):
            if receipt.outcome is not Outcome.CONFLICT:
                key = arrival.source, arrival.event_id
                self._current[key] = receipt.event, arrival.body_sha256
        if len(self._current) > GENERATION_EVENTS:
            self._current, self._previous = {}, self._current
