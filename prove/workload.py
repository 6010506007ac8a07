"""A seeded workload: new events, duplicates, conflicts and invalid requests.

An event is a number. Its kind, body and amount follow from the seed and the number alone, so a run
of a million events keeps only the responses in memory.
"""

import hashlib
import random
from collections.abc import Iterator
from enum import IntEnum

from support.client_history import Expectation

ACCOUNTS = 2_000
HOT_ACCOUNTS = 4
HOT_ONE_IN = 40
VARIANT_AMOUNT = 1_000
REVIEWED_PATH = "/webhooks/partner"

_MASK = 2**64 - 1

Request = tuple[int, int]
"""The event's number, and the variant of its body."""


class EventKind(IntEnum):
    """How the service should treat an event."""

    PLAIN = 0
    """Booked by a handler that takes ``(event, tx)``."""
    WITH_EFFECT = 1
    """Booked by a handler that takes ``(event, tx, effects)`` and marks an effect."""
    FLAKY = 2
    """Its handler fails about every second time, after its writes."""
    DECLINED = 3
    """Its handler usually raises a permanent error; a requeue may succeed."""
    MALFORMED = 4
    """Its payload lacks a field that the handler needs."""
    UNHANDLED = 5
    """No handler is registered for its type."""
    INVALID = 6
    """It has no type: the response is 4xx, and nothing is recorded."""
    BATCHED = 7
    """Booked in a call with many events."""
    BATCH_FLAKY = 8
    """Its call fails about every second time, after its writes."""
    BATCH_DECLINED = 9
    """Its call usually raises a permanent error; a requeue may succeed."""
    WANTED = 10
    """The filter of its handler lets it pass."""
    UNWANTED = 11
    """The filter of its handler rejects it: it is recorded without a job."""
    REVIEWED = 12
    """Its source keeps unknown types for review. Some are then routed to a handler."""


_SHARES = (
    *(EventKind.PLAIN,) * 45,
    *(EventKind.BATCHED,) * 12,
    EventKind.BATCH_FLAKY,
    *(EventKind.BATCH_DECLINED,) * 2,
    *(EventKind.WITH_EFFECT,) * 10,
    *(EventKind.FLAKY,) * 4,
    *(EventKind.DECLINED,) * 3,
    *(EventKind.MALFORMED,) * 4,
    *(EventKind.UNHANDLED,) * 6,
    *(EventKind.INVALID,) * 3,
    *(EventKind.WANTED,) * 4,
    *(EventKind.UNWANTED,) * 4,
    *(EventKind.REVIEWED,) * 2,
)
_TYPES = {
    EventKind.WITH_EFFECT: "payment.with_effect",
    EventKind.UNHANDLED: "payment.unhandled",
    EventKind.BATCHED: "payment.batched",
    EventKind.BATCH_FLAKY: "payment.batched",
    EventKind.BATCH_DECLINED: "payment.batched",
    EventKind.WANTED: "payment.offered",
    EventKind.UNWANTED: "payment.offered",
    EventKind.REVIEWED: "payment.surprising",
}
_OFFERED = (EventKind.WANTED, EventKind.UNWANTED)
_BEHAVIOURS = {
    EventKind.FLAKY: "flaky",
    EventKind.DECLINED: "decline",
    EventKind.BATCH_FLAKY: "flaky",
    EventKind.BATCH_DECLINED: "decline",
}
_EXPECTATIONS = {
    EventKind.PLAIN: Expectation(),
    EventKind.WITH_EFFECT: Expectation(has_effect=True),
    EventKind.FLAKY: Expectation(),
    EventKind.DECLINED: Expectation(can_fail=True),
    EventKind.BATCHED: Expectation(),
    EventKind.BATCH_FLAKY: Expectation(),
    EventKind.BATCH_DECLINED: Expectation(can_fail=True),
    EventKind.MALFORMED: Expectation(can_succeed=False, can_fail=True),
    EventKind.UNHANDLED: Expectation(has_job=False),
    EventKind.INVALID: None,
    EventKind.WANTED: Expectation(),
    EventKind.UNWANTED: Expectation(has_job=False, is_filtered=True),
    EventKind.REVIEWED: Expectation(has_job=False, is_reviewed=True),
}


class Workload:
    """Everything that is sent to one ledger."""

    def __init__(self, seed: int, name: str) -> None:
        self.name = name
        self.size = 0
        """How many events were drawn so far. Their numbers are below this."""
        self._salt = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8])
        self._rng = random.Random(f"{seed}/{name}")  # noqa: S311 - reproducible

    def requests(self) -> Iterator[Request]:
        """Yield requests without end."""
        while True:
            number = self.new()
            yield number, 0
            yield from self._repeats(number)

    def new(self) -> int:
        """Draw the next event."""
        self.size += 1
        return self.size - 1

    def new_of_kind(self, kind: EventKind) -> int:
        """Draw the next event of a kind; the ones skipped are never sent."""
        while True:
            number = self.new()
            if self.kind(number) is kind:
                return number

    def _repeats(self, number: int) -> Iterator[Request]:
        """Yield repetitions: of this event at once, on several connections, or of an old one."""
        roll = self._rng.random()
        if roll < 0.06:
            yield from [(number, 0)] * self._rng.randint(1, 3)
        elif roll < 0.09:
            yield from [(number, 1), (number, 0)]
        elif roll < 0.14:
            yield self._rng.randrange(self.size), 0
        elif roll < 0.16:
            yield self._rng.randrange(self.size), 1

    def event_id(self, number: int) -> str:
        """Return the id under which an event is sent."""
        return f"{self.name}-{number}"

    def number_of(self, event_id: str) -> int | None:
        """Return the number of the event with this id; None if it was never drawn."""
        name, _, digits = event_id.rpartition("-")
        is_drawn = name == self.name and digits.isdecimal() and int(digits) < self.size
        return int(digits) if is_drawn else None

    def kind(self, number: int) -> EventKind:
        """Return the kind of an event."""
        return _SHARES[self._bits(number) % len(_SHARES)]

    def expectation(self, number: int) -> Expectation | None:
        """Return how an event may end; None if it must be rejected."""
        return _EXPECTATIONS[self.kind(number)]

    def amount(self, number: int, variant: int) -> int:
        """Return the amount that an event books."""
        return 1 + (self._bits(number) >> 16) % 9 + VARIANT_AMOUNT * variant

    def account(self, number: int) -> str:
        """Return the account that an event books to; a few accounts are contended."""
        bits = self._bits(number) >> 24
        if bits % HOT_ONE_IN == 0:
            return f"hot-{(bits >> 8) % HOT_ACCOUNTS}"
        return f"account-{(bits >> 8) % ACCOUNTS}"

    def path(self, number: int) -> str:
        """Return the path that an event is sent to."""
        is_reviewed = self.kind(number) is EventKind.REVIEWED
        return REVIEWED_PATH if is_reviewed else "/events/ingest"

    def body(self, number: int, variant: int) -> bytes:
        """Return the exact bytes of a request; every variant differs."""
        kind = self.kind(number)
        amount = "" if kind is EventKind.MALFORMED else f'"amount":{self.amount(number, variant)},'
        wanted = f'"wanted":{"true" if kind is EventKind.WANTED else "false"},'
        payload = (
            f"{amount}{wanted if kind in _OFFERED else ''}"
            f'"account":"{self.account(number)}","behaviour":"{_BEHAVIOURS.get(kind, "")}",'
            f'"variant":{variant}'
        )
        event_type = _TYPES.get(kind, "payment.made")
        event_type = "" if kind is EventKind.INVALID else f'"event_type":"{event_type}",'
        # A webhook is its own payload; an event for /events/ingest has one.
        payload = payload if kind is EventKind.REVIEWED else f'"payload":{{{payload}}}'
        return f'{{"event_id":"{self.name}-{number}",{event_type}{payload}}}'.encode()

    def body_sha256(self, number: int, variant: int) -> bytes:
        """Return the hash that the ledger keeps of a body."""
        return hashlib.sha256(self.body(number, variant)).digest()

    def _bits(self, number: int) -> int:
        """Return 64 pseudo-random bits (SplitMix64)."""
        bits = (number * 0x9E3779B97F4A7C15 + self._salt) & _MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        return bits ^ (bits >> 31)
