"""Events and deliveries: their identity, their way to the ledger, what a handler is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

ID_LIMIT_BYTES: Final = 255
"""How long an event id, a type, a reference or an idempotency key may be, in UTF-8."""

INGEST_SOURCE: Final = "ingest"
"""The source of what comes in through ``POST /events/ingest``."""

P = TypeVar("P")


class Outcome(StrEnum):
    """What a delivery turned out to be."""

    RECORDED = "recorded"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


class ProcessingState(StrEnum):
    """Where an event stands: follows from its jobs."""

    PENDING = "pending"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    IGNORED = "ignored"


def invalid_text_reason(text: str) -> str | None:
    """Say why a text cannot be an id, a type, a reference or a key; None when it can."""
    if not text:
        return "is empty"
    if "\0" in text:
        return "contains a NUL"
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if length > ID_LIMIT_BYTES:
        return f"is {length} bytes long; the limit is {ID_LIMIT_BYTES}"
    return None


class Identity(NamedTuple):
    """What a delivery is about."""

    event_id: str
    type: str
    reference: str | None = None


class DuplicateBody(IntEnum):
    """What is done with an event that has the body of another, under an id of its own."""

    ALLOWED = 0
    FLAGGED = 1
    HELD = 2


class Arrival(NamedTuple):
    """A verified, identified delivery on its way to the ledger.

    `body_sha256` is that of the body without what its sender changes from delivery to delivery.
    """

    source: str
    event_id: str
    type: str
    reference: str | None
    body_sha256: bytes
    headers: bytes
    body: bytes
    duplicate_body: DuplicateBody = DuplicateBody.ALLOWED


class Receipt(NamedTuple):
    """What the ledger says of a delivery after its commit. `event` is the ledger's own id."""

    event: int
    outcome: Outcome


@dataclass(frozen=True)
class Event(Generic[P]):
    """What a handler gets. `payload` is decoded when first asked for."""

    id: str
    source: str
    type: str
    reference: str | None
    received_at: datetime
    body: bytes
    headers: Mapping[str, str]
    _decode: Callable[[], Any] = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """The event's identity over all sources: ``source:id``."""
        return f"{self.source}:{self.id}"

    @property
    def payload(self) -> P:
        """The decoded body. Raises MalformedPayload where it cannot be decoded."""
        decoded: P
        try:
            decoded = self.__dict__["_payload"]
        except KeyError:
            decoded = self._decode()
            self.__dict__["_payload"] = decoded
        return decoded
