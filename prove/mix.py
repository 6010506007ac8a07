"""What is sent: a seeded mix of new events, duplicates, conflicts, and requests to refuse.

An event is a number. What it is follows from the seed and the number alone, so that nothing has to
be kept of a million events but what came back.
"""

import hashlib
import random
from collections.abc import Iterator
from enum import IntEnum

ACCOUNTS = 2_000
HOT_ACCOUNTS = 4
HOT_ONE_IN = 40
VARIANT_AMOUNT = 1_000

_MASK = 2**64 - 1


class Kind(IntEnum):
    """What becomes of an event."""

    PLAIN = 0
    """Booked by a handler that takes ``(event, tx)``."""
    MARKED = 1
    """Booked by a handler that takes ``(event, tx, effects)`` and marks an effect."""
    TRIPPING = 2
    """Its handler fails about every second time, after it wrote."""
    VETOED = 3
    """Its handler refuses it for good, mostly: a requeue may get it through."""
    MALFORMED = 4
    """Its payload lacks what the handler needs."""
    UNKNOWN = 5
    """Nobody handles its type."""
    REFUSED = 6
    """It has no type: 4xx, and no row."""


BOOKED = frozenset({Kind.PLAIN, Kind.MARKED, Kind.TRIPPING})
_SHARES = (
    *(Kind.PLAIN,) * 70,
    *(Kind.MARKED,) * 10,
    *(Kind.TRIPPING,) * 4,
    *(Kind.VETOED,) * 3,
    *(Kind.MALFORMED,) * 4,
    *(Kind.UNKNOWN,) * 6,
    *(Kind.REFUSED,) * 3,
)
_TYPES = {Kind.MARKED: "payment.marked", Kind.UNKNOWN: "payment.unheard_of"}
_MOODS = {Kind.TRIPPING: "trips", Kind.VETOED: "vetoes"}


class Mix:
    """All that is sent to one ledger."""

    def __init__(self, seed: int, name: str) -> None:
        self.name = name
        self.sent = 0
        """How many events there are: numbers below this one were given out."""
        self._salt = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8])
        self._dice = random.Random(f"{seed}/{name}")  # noqa: S311 - the same each time

    def sendings(self) -> Iterator[tuple[int, int]]:
        """Event and variant of each request to send, without end."""
        while True:
            number = self.new()
            yield number, 0
            yield from self._again(number)

    def new(self) -> int:
        """The next event."""
        self.sent += 1
        return self.sent - 1

    def new_of(self, kind: Kind) -> int:
        """The next event of a kind; those before it are never sent."""
        while True:
            number = self.new()
            if self.kind(number) is kind:
                return number

    def _again(self, number: int) -> Iterator[tuple[int, int]]:
        """What is sent again: at once, for several connections to carry, or long after."""
        roll = self._dice.random()
        if roll < 0.06:
            yield from [(number, 0)] * self._dice.randint(1, 3)
        elif roll < 0.09:
            yield from [(number, 1), (number, 0)]
        elif roll < 0.14:
            yield self._dice.randrange(self.sent), 0
        elif roll < 0.16:
            yield self._dice.randrange(self.sent), 1

    def event_id(self, number: int) -> str:
        """The id under which an event is sent."""
        return f"{self.name}-{number}"

    def number(self, event_id: str) -> int | None:
        """The event of an id; None for one that this mix never had."""
        name, _, digits = event_id.rpartition("-")
        known = name == self.name and digits.isdecimal() and int(digits) < self.sent
        return int(digits) if known else None

    def kind(self, number: int) -> Kind:
        """What becomes of an event."""
        return _SHARES[self._bits(number) % len(_SHARES)]

    def amount(self, number: int, variant: int) -> int:
        """What an event books."""
        return 1 + (self._bits(number) >> 16) % 9 + VARIANT_AMOUNT * variant

    def account(self, number: int) -> str:
        """Where an event books; a few accounts are everybody's."""
        bits = self._bits(number) >> 24
        if bits % HOT_ONE_IN == 0:
            return f"hot-{(bits >> 8) % HOT_ACCOUNTS}"
        return f"account-{(bits >> 8) % ACCOUNTS}"

    def body(self, number: int, variant: int) -> bytes:
        """The exact bytes of a request; each variant has its own."""
        kind = self.kind(number)
        amount = "" if kind is Kind.MALFORMED else f'"amount":{self.amount(number, variant)},'
        event_type = _TYPES.get(kind, "payment.made")
        event_type = "" if kind is Kind.REFUSED else f'"event_type":"{event_type}",'
        return (
            f'{{"event_id":"{self.name}-{number}",{event_type}"payload":{{{amount}'
            f'"account":"{self.account(number)}","mood":"{_MOODS.get(kind, "")}",'
            f'"variant":{variant}}}}}'
        ).encode()

    def sha256(self, number: int, variant: int) -> bytes:
        """What the ledger keeps of a body for ever."""
        return hashlib.sha256(self.body(number, variant)).digest()

    def _bits(self, number: int) -> int:
        """Sixty-four bits that look like chance."""
        bits = (number * 0x9E3779B97F4A7C15 + self._salt) & _MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        return bits ^ (bits >> 31)
