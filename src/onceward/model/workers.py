"""Running workers, as every process on the database sees them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

HEARTBEAT_SECONDS: Final = 10.0
"""Interval at which a worker renews its row, and at which receiving processes read the rows."""

WORKER_TIMEOUT_SECONDS: Final = 3.5 * HEARTBEAT_SECONDS
"""Time without a heartbeat after which a worker counts as dead."""


class WorkerHealth(msgspec.Struct, frozen=True):
    """The reasons why jobs of a worker that is alive may wait. A healthy worker has none."""

    paused: Mapping[str, datetime] = msgspec.field(default_factory=dict)
    """The handlers that start no jobs because their timed-out calls still run, with the start."""
    claims_failed_since: datetime | None = None
    claim_error: str = ""
    """Why no job can be claimed. It is public, so it quotes no value."""


HEALTHY: Final = WorkerHealth()


class LiveWorker(msgspec.Struct, frozen=True):
    """A worker that has renewed its row recently."""

    name: str
    handlers: frozenset[str]
    started_at: datetime
    seen_at: datetime
    health: WorkerHealth = HEALTHY
