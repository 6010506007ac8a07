"""What this process recorded lately: a repetition is known before the ledger is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceward.model import Arrival, Outcome, Receipt

MOST: Final = 5_000
"""How many are known at least, and half of how many are at most."""


class Recent:
    """Events by their keys, with the hash of their bodies. A hint: the ledger has the last word."""

    def __init__(self) -> None:
        self._hashes: dict[tuple[str, str], bytes] = {}
        self._older: dict[tuple[str, str], bytes] = {}

    def has(self, arrival: Arrival) -> bool:
        """Whether this event is in the ledger, with this body."""
        return self._hash((arrival.source, arrival.event_id)) == arrival.body_sha256

    def repeated(self, arrivals: Sequence[Arrival]) -> list[int]:
        """The places of those with the body of one before: in the ledger, or among these."""
        found = []
        among: dict[tuple[str, str], bytes] = {}
        for place, arrival in enumerate(arrivals):
            key = arrival.source, arrival.event_id
            first = self._hash(key) or among.setdefault(key, arrival.body_sha256)
            if first is not arrival.body_sha256 and first == arrival.body_sha256:
                found.append(place)
        return found

    def _hash(self, key: tuple[str, str]) -> bytes | None:
        return self._hashes.get(key) or self._older.get(key)

    def note(self, arrivals: Sequence[Arrival], receipts: Sequence[Receipt]) -> None:
        """These are in the ledger now; those that are in conflict with it under another body."""
        for arrival, receipt in zip(arrivals, receipts, strict=True):
            if receipt.outcome is not Outcome.CONFLICT:
                self._hashes[arrival.source, arrival.event_id] = arrival.body_sha256
        if len(self._hashes) > MOST:
            self._hashes, self._older = {}, self._hashes
