"""What the senders saw: every attempt, with what came back. Compact, for millions of them."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

from prove.mix import Mix

FIRST_ANSWER_STATUS = 100
RETRYABLE_STATUSES = frozenset({408, 425, 429})


class Outcome(IntEnum):
    """What a sender may conclude from an answer."""

    UNKNOWN = 0
    """5xx, a timeout, a reset: recorded or not, nobody can tell. It is sent again."""
    REFUSED = 1
    FIRST = 2
    """Accepted, and said to be new."""
    DUPLICATE = 3
    CONFLICT = 4

    @property
    def is_ok(self) -> bool:
        """Whether the sender was told that the event is safe."""
        return self >= Outcome.FIRST


def outcome_of(status: int, body: bytes) -> Outcome:
    """Read an answer; `status` is 0 where none came."""
    if status >= 500 or status < FIRST_ANSWER_STATUS or status in RETRYABLE_STATUSES:
        return Outcome.UNKNOWN
    if status >= 300:
        return Outcome.REFUSED
    if b'"conflict":true' in body:
        return Outcome.CONFLICT
    return Outcome.DUPLICATE if b'"duplicate":true' in body else Outcome.FIRST


@dataclass(frozen=True)
class Attempt:
    """One request, as its sender saw it."""

    number: int
    variant: int
    outcome: Outcome
    status: int
    start: float
    end: float


@dataclass(frozen=True)
class Requeue:
    """One request to queue a job again."""

    job: int
    outcome: Outcome
    status: int
    end: float


@dataclass
class Counts:
    """What was sent of each event, by its number."""

    sent: array[int]
    accepted: array[int]
    firsts: array[int]
    refused: array[int]
    variants: bytearray
    """Bit v is set when variant v was sent."""
    overlapping: int
    """Requests that were accepted while another with the same id was under way."""


class Journal:
    """Everything that was sent to one ledger, and what came back. One thread writes it."""

    def __init__(self, mix: Mix) -> None:
        self.mix = mix
        self.requeues: list[Requeue] = []
        self._numbers = array("L")
        self._variants = array("B")
        self._outcomes = array("B")
        self._statuses = array("H")
        self._starts = array("d")
        self._ends = array("d")
        self.accepted = 0
        self.unknown = 0

    def __len__(self) -> int:
        return len(self._ends)

    def note(
        self, number: int, variant: int, answer: tuple[int, bytes], start: float, end: float
    ) -> Outcome:
        """Note an attempt and its answer; the last column is written last."""
        status, body = answer
        outcome = outcome_of(status, body)
        self.accepted += outcome.is_ok
        self.unknown += outcome is Outcome.UNKNOWN
        self._numbers.append(number)
        self._variants.append(variant)
        self._outcomes.append(outcome)
        self._statuses.append(status)
        self._starts.append(start)
        self._ends.append(end)
        return outcome

    def acknowledged(self, attempts: int) -> set[int]:
        """The events that were accepted in the first so many attempts."""
        ok = Outcome.FIRST
        return {
            number
            for number, outcome in zip(
                self._numbers[:attempts], self._outcomes[:attempts], strict=True
            )
            if outcome >= ok
        }

    def attempts_of(self, number: int) -> list[Attempt]:
        """Every attempt to send one event."""
        return [
            Attempt(
                number,
                self._variants[place],
                Outcome(self._outcomes[place]),
                self._statuses[place],
                self._starts[place],
                self._ends[place],
            )
            for place, other in enumerate(self._numbers)
            if other == number
        ]

    def outcomes(self) -> Counter[int]:
        """How many attempts ended how."""
        return Counter(self._outcomes)

    def counts(self) -> Counts:
        """Add it all up."""
        size = self.mix.sent
        sent, accepted, firsts, refused = (array("H", bytes(2 * size)) for _ in range(4))
        counts = Counts(sent, accepted, firsts, refused, bytearray(size), overlapping=0)
        last_end = array("d", bytes(8 * size))
        for number, variant, outcome, start, end in zip(
            self._numbers, self._variants, self._outcomes, self._starts, self._ends, strict=True
        ):
            counts.sent[number] += 1
            counts.variants[number] |= 1 << variant
            if outcome >= Outcome.FIRST:
                counts.accepted[number] += 1
                counts.firsts[number] += outcome == Outcome.FIRST
                counts.overlapping += start < last_end[number]
                last_end[number] = max(end, last_end[number])
            elif outcome == Outcome.REFUSED:
                counts.refused[number] += 1
        return counts
