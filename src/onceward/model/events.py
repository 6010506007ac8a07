"""Events and deliveries: their identity, their recording, and the event that a handler gets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from onceward.errors import ConfigurationError

ID_LIMIT_BYTES: Final = 255
"""The limit for an event id, a type, a reference or an idempotency key, in UTF-8 bytes."""

INGEST_SOURCE: Final = "ingest"
"""The source of events from ``POST /events/ingest``."""

SourceMode = Literal["background", "inline"]
"""Whether the handlers of a source run in a worker, or within the request."""

UnknownTypes = Literal["ignore", "review"]
"""Whether events of a type that no handler wants are ignored, or wait for a person."""

P = TypeVar("P")


class Outcome(StrEnum):
    """How the ledger classified a delivery."""

    RECORDED = "recorded"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


class ProcessingState(StrEnum):
    """The state of an event, derived from its jobs."""

    PENDING = "pending"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    IGNORED = "ignored"
    REVIEW = "review"
    """No handler wanted its type, and its source keeps such events for a person."""


def invalid_text_reason(text: str) -> str | None:
    """Return why a text cannot be an id, a type, a reference or a key; None if it can."""
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


def storable_key(text: str) -> str:
    """Return a key as it is stored: its hash if it is too long or cannot be stored."""
    if not text or invalid_text_reason(text) is None:
        return text
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


class Identity(NamedTuple):
    """The id, the type and the related object of an event, as read from a request."""

    event_id: str
    type: str
    reference: str | None = None


class DuplicateBody(IntEnum):
    """The policy for an event whose body was already recorded under another id.

    Bodies are the same if the proof covers the same content; see `Arrival.covered_sha256`.
    """

    ALLOWED = 0
    FLAGGED = 1
    HELD = 2
    """Its jobs fail, and wait for an operator."""


class Arrival(NamedTuple):
    """A verified, identified delivery on its way to the ledger.

    `body_sha256` omits the fields that the provider changes from one delivery to the next: another
    hash under the same id is a conflict. `covered_sha256` is the hash of the values that the proof
    covers, if other bodies can have the same proof; None if it is the body's. The same hash under
    another id is a duplicate body.
    """

    source: str
    event_id: str
    type: str
    reference: str | None
    body_sha256: bytes
    headers: bytes
    body: bytes
    duplicate_body: DuplicateBody = DuplicateBody.ALLOWED
    covered_sha256: bytes | None = None
    reviewed: bool = False
    """Whether the event waits for a person if no handler wants its type."""

    @property
    def size(self) -> int:
        """The bytes of its body and its headers.

        Each event of a request is written with its own headers, although they share them in memory.
        """
        return len(self.body) + len(self.headers)


class Receipt(NamedTuple):
    """The ledger's result for a committed delivery. `event` is the ledger's own id."""

    event: int
    outcome: Outcome


def _brackets_text(arguments: tuple[object, ...]) -> str:
    names = [getattr(argument, "__name__", "Model") for argument in arguments]
    listed = ", ".join(names)
    return (
        f"Event({listed}) calls the class; write event: Event[{listed or 'Model'}], with square "
        "brackets"
    )


@dataclass(frozen=True, init=False)
class Event(Generic[P]):
    """The event that a handler gets. `payload` is decoded on first access."""

    id: str
    source: str
    type: str
    reference: str | None
    received_at: datetime
    body: bytes
    headers: Mapping[str, str]
    _decode: Callable[[], Any] = field(repr=False, compare=False)

    # Not the generated one: this one explains Event(Model), and takes less time.
    def __init__(self, *model: object, **fields: Any) -> None:
        if model or not fields:
            raise ConfigurationError(_brackets_text(model))
        self.__dict__.update(fields)

    @property
    def key(self) -> str:
        """The identity across all sources: ``source:id``."""
        return f"{self.source}:{self.id}"

    @property
    def payload(self) -> P:
        """The decoded body. Raises MalformedPayload if it cannot be decoded."""
        decoded: P
        try:
            decoded = self.__dict__["_payload"]
        except KeyError:
            decoded = self._decode()
            self.__dict__["_payload"] = decoded
        return decoded
