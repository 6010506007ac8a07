"""The id cache: the recorded events that receivers may share, beside the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from onceward.model.events import Arrival


class RecordedDelivery(NamedTuple):
    """A committed delivery that does not conflict, and the ledger's id of its event."""

    arrival: Arrival
    event: int


class IdCache(Protocol):
    """Remembers which events some receiver recorded, for all receivers.

    Only a source of hints: the ledger checks each and has the last word. No method raises, and none
    takes longer than a few milliseconds.
    """

    async def find(self, ledger: str, arrivals: Sequence[Arrival]) -> Sequence[int | None]:
        """Return, for each delivery, the event that it probably repeats, by the ledger's id."""

    def add(self, ledger: str, recorded: Sequence[RecordedDelivery]) -> None:
        """Remember committed deliveries some time later, or never."""
