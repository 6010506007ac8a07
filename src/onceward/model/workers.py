"""Running workers, as every process on the database sees them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

HEARTBEAT_SECONDS: Final = 10.0
"""Interval at which a worker renews its row, and at which receiving processes read the rows."""

WORKER_TIMEOUT_SECONDS: Final = 3.5 * HEARTBEAT_SECONDS
"""Time without a heartbeat after which a worker counts as dead."""


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that has renewed its row recently."""

    name: str
    handlers: frozenset[str]
    started_at: datetime
    seen_at: datetime
