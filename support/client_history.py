"""The senders' view of a run: what they sent, and what they may conclude from each response."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

FIRST_HTTP_STATUS = 100
RETRYABLE_STATUSES = frozenset({408, 425, 429})


class Outcome(IntEnum):
    """A sender's conclusion from one response."""

    UNKNOWN = 0
    """5xx, a timeout or a reset: the event may or may not be recorded, so the sender retries."""
    REJECTED = 1
    RECORDED = 2
    """Accepted and reported as new."""
    DUPLICATE = 3
    CONFLICT = 4

    @property
    def is_accepted(self) -> bool:
        """Whether the response promised that the event is durable."""
        return self >= Outcome.RECORDED


def outcome_of(status: int, body: bytes) -> Outcome:
    """Classify a response; `status` is 0 when none arrived."""
    if status >= 500 or status < FIRST_HTTP_STATUS or status in RETRYABLE_STATUSES:
        return Outcome.UNKNOWN
    if status >= 300:
        return Outcome.REJECTED
    if b'"conflict":true' in body:
        return Outcome.CONFLICT
    return Outcome.DUPLICATE if b'"duplicate":true' in body else Outcome.RECORDED


@dataclass(frozen=True, slots=True)
class Expectation:
    """How an accepted event may end."""

    has_job: bool = True
    can_succeed: bool = True
    can_fail: bool = False
    has_effect: bool = False
    is_filtered: bool = False
    """Whether it has no job because the filter of its handler rejects it."""
    is_reviewed: bool = False
    """Whether it waits for review, and may get a job from an operator."""


class SentEvent(NamedTuple):
    """One event with the responses to all requests that carried it."""

    number: int
    """Its position in the history."""
    event_id: str
    requests: int
    accepted: int
    recorded: int
    """Responses that reported it as new."""
    rejected: int
    expectation: Expectation | None
    """None if every request for it must be rejected."""


class Requeue(NamedTuple):
    """One request to requeue a job."""

    job: int
    outcome: Outcome


class ClientHistory(Protocol):
    """Everything that was sent to one ledger."""

    @property
    def requeues(self) -> Sequence[Requeue]:
        """Return every request to requeue a job."""

    def __len__(self) -> int:
        """Return how many events there are, sent or not."""

    def event(self, event_id: str) -> SentEvent | None:
        """Return the event with this id; None if no request carried it."""

    def events(self) -> Iterator[SentEvent]:
        """Yield every event that was sent."""

    def amount(self, event: SentEvent, body_sha256: bytes) -> int | None:
        """Return the amount that a body of the event books; None if that body was never sent."""
