"""Every request with its response, as the senders saw it, in a compact form for millions."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prove.workload import Workload
from support.client_history import Outcome, Requeue, SentEvent, outcome_of


@dataclass(frozen=True)
class SentRequest:
    """One request with its response."""

    number: int
    variant: int
    outcome: Outcome
    status: int
    start: float
    end: float


class History:
    """All requests to one ledger. A single thread adds to it; others may read."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.requeues: list[Requeue] = []
        self.accepted = 0
        self.unknown = 0
        self._void = 0
        self._numbers = array("L")
        self._variants = array("B")
        self._outcomes = array("B")
        self._statuses = array("H")
        self._starts = array("d")
        self._ends = array("d")

    def __len__(self) -> int:
        return len(self._ends)

    def record(
        self, number: int, variant: int, response: tuple[int, bytes], start: float, end: float
    ) -> Outcome:
        """Add a request with its response, and return the outcome."""
        status, body = response
        outcome = outcome_of(status, body)
        self.accepted += outcome.is_accepted
        self.unknown += outcome is Outcome.UNKNOWN
        self._numbers.append(number)
        self._variants.append(variant)
        self._outcomes.append(outcome)
        self._statuses.append(status)
        self._starts.append(start)
        self._ends.append(end)  # last, because `len` counts this column
        return outcome

    def acknowledged(self, requests: int) -> set[int]:
        """Return the events that were accepted within the first `requests` requests."""
        return {
            number
            for number, outcome in zip(
                self._numbers[:requests], self._outcomes[:requests], strict=True
            )
            if outcome >= Outcome.RECORDED
        }

    def void(self, requests: int) -> None:
        """Take back what the first `requests` responses promised: the ledger is an older one.

        In the summary they count as unknown, and so do all requeues until now.
        """
        self._void = requests
        self.requeues[:] = [Requeue(entry.job, Outcome.UNKNOWN) for entry in self.requeues]

    def reported_as_new(self, since: int) -> set[int]:
        """Return the events that were reported as new after the first `since` requests."""
        return {
            number
            for number, outcome in zip(self._numbers[since:], self._outcomes[since:], strict=False)
            if outcome == Outcome.RECORDED
        }

    def accepted_since(self, time: float) -> set[int]:
        """Return the events of requests that were sent after a time and accepted."""
        return {
            number
            for number, outcome, start in zip(
                self._numbers, self._outcomes, self._starts, strict=False
            )
            if start > time and outcome >= Outcome.RECORDED
        }

    def requests_for(self, number: int) -> list[SentRequest]:
        """Return every request that carried one event."""
        return [
            SentRequest(
                number,
                self._variants[index],
                Outcome(self._outcomes[index]),
                self._statuses[index],
                self._starts[index],
                self._ends[index],
            )
            for index, other in enumerate(self._numbers)
            if other == number
        ]

    def outcomes(self) -> Counter[int]:
        """Return the number of requests for each outcome."""
        return Counter(self._outcomes)

    def summary(self) -> HistorySummary:
        """Return the requests added up by event."""
        summary = HistorySummary(self.workload, self.requeues)
        last_end = array("d", bytes(8 * len(summary)))
        for index, (number, variant, outcome, start, end) in enumerate(
            zip(
                self._numbers, self._variants, self._outcomes, self._starts, self._ends, strict=True
            )
        ):
            is_void = index < self._void and outcome >= Outcome.RECORDED
            summary.add(number, variant, Outcome.UNKNOWN if is_void else outcome)
            if outcome >= Outcome.RECORDED:
                summary.overlapping += start < last_end[number]
                last_end[number] = max(end, last_end[number])
        return summary


class HistorySummary:
    """The requests of a history, added up by event."""

    def __init__(self, workload: Workload, requeues: Sequence[Requeue]) -> None:
        self.requeues = requeues
        self.overlapping = 0
        """Requests that were accepted while another with the same id was in flight."""
        self._workload = workload
        self._size = workload.size
        self._requests, self._accepted, self._recorded, self._rejected = (
            array("H", bytes(2 * self._size)) for _ in range(4)
        )
        self._variants = bytearray(self._size)
        """Bit v is set if variant v was sent."""

    def __len__(self) -> int:
        return self._size

    def add(self, number: int, variant: int, outcome: int) -> None:
        """Count one request."""
        self._requests[number] += 1
        self._variants[number] |= 1 << variant
        self._accepted[number] += outcome >= Outcome.RECORDED
        self._recorded[number] += outcome == Outcome.RECORDED
        self._rejected[number] += outcome == Outcome.REJECTED

    def event(self, event_id: str) -> SentEvent | None:
        """Return the event with this id; None if no request carried it."""
        number = self._workload.number_of(event_id)
        return None if number is None or not self._requests[number] else self._event(number)

    def events(self) -> Iterator[SentEvent]:
        """Yield every event that was sent."""
        for number in range(self._size):
            if self._requests[number]:
                yield self._event(number)

    def amount(self, event: SentEvent, body_sha256: bytes) -> int | None:
        """Return the amount that a body of the event books; None if that body was never sent."""
        sent = self._variants[event.number]
        for variant in range(sent.bit_length()):
            if sent >> variant & 1 and body_sha256 == self._workload.body_sha256(
                event.number, variant
            ):
                return self._workload.amount(event.number, variant)
        return None

    def _event(self, number: int) -> SentEvent:
        return SentEvent(
            number,
            self._workload.event_id(number),
            self._requests[number],
            self._accepted[number],
            self._recorded[number],
            self._rejected[number],
            self._workload.expectation(number),
        )
