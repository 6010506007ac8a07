"""The rows of an archive file: their columns, their digest and their text form.

DuckDB takes rows fastest as lines of JSON with bytes in base64 (decision 27). The same lines are
the input of the content digest, which is therefore independent of Parquet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from onceward.model.archive import ArchivedEvent
from onceward.runtime.time_units import epoch_microseconds, from_epoch_microseconds

COLUMNS: Final = {
    "id": "BIGINT",
    "source": "VARCHAR",
    "event_id": "VARCHAR",
    "type": "VARCHAR",
    "reference": "VARCHAR",
    "received_at": "TIMESTAMPTZ",
    "body_sha256": "BLOB",
    "deliveries": "INTEGER",
    "conflicts": "INTEGER",
    "routed": "BOOLEAN",
    "processing_state": "VARCHAR",
    "processed_at": "TIMESTAMPTZ",
    "headers": "BLOB",
    "body": "BLOB",
}
"""The columns of a file, in their order, with DuckDB's types."""

_encoder: Final = msgspec.json.Encoder()


def line(event: ArchivedEvent) -> bytes:
    """Return a row as a line of JSON: times in microseconds since 1970, bytes in base64."""
    processed_at = event.processed_at
    row = {
        "id": event.id,
        "source": event.source,
        "event_id": event.event_id,
        "type": event.type,
        "reference": event.reference,
        "received_at": epoch_microseconds(event.received_at),
        "body_sha256": event.body_sha256,
        "deliveries": event.deliveries,
        "conflicts": event.conflicts,
        "routed": event.routed,
        "processing_state": event.processing_state.value,
        "processed_at": None if processed_at is None else epoch_microseconds(processed_at),
        "headers": event.headers,
        "body": event.body,
    }
    return _encoder.encode(row) + b"\n"


def from_columns(values: Iterable[Any]) -> ArchivedEvent:
    """Return the row of a file. Its times are microseconds since 1970.

    Raise ValueError, TypeError or OverflowError if a value cannot be one of an event.
    """
    row = dict(zip(COLUMNS, values, strict=True))
    row["received_at"] = from_epoch_microseconds(row["received_at"])
    if row["processed_at"] is not None:
        row["processed_at"] = from_epoch_microseconds(row["processed_at"])
    return msgspec.convert(row, ArchivedEvent)


class Digest:
    """The facts of some rows: their number, their ids, the size of their bodies, and a hash."""

    def __init__(self) -> None:
        self.rows = 0
        self.body_bytes = 0
        self.first_event = 0
        self.last_event = 0
        self._sha256 = hashlib.sha256()

    def add(self, event: ArchivedEvent, text: bytes) -> None:
        """Add a row and its line."""
        if not self.rows:
            self.first_event = event.id
        self.rows += 1
        self.last_event = event.id
        self.body_bytes += len(event.body)
        self._sha256.update(text)

    @property
    def content_sha256(self) -> bytes:
        """The SHA-256 of all lines."""
        return self._sha256.digest()
