"""The parts that both stores share, built on a read and a transaction of named statements."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NoReturn, Protocol

from onceward.errors import ConfigurationError, PermanentError, StoreBlocked
from onceward.model.effects import key_in_use
from onceward.model.events import Arrival, Receipt
from onceward.model.jobs import Fail, Ignore, Job, Postpone, Reschedule
from onceward.model.versions import Watermark, parse_version, version_json
from onceward.ports import ErrorSettlement, Row
from onceward.store.locks import Lock
from onceward.store.payload_routes import PayloadRoutes

INLINE_BODY_BYTES: Final = 64 * 1024
"""Larger bodies are loaded when their job starts, so that a claimed batch fits in memory."""

CLAIM_BODY_BYTES: Final = 400 * INLINE_BODY_BYTES
"""The limit for the bodies of one claim, together: those of many jobs must be smaller."""

RATE_BURST_SECONDS: Final = 0.1
"""How much of its rate a handler may use at once."""

MIN_LOOK_JOBS: Final = 32
"""The due jobs of a handler that a claim looks at, at least, if some may have to wait for their key
or their source: they must not hide the others."""

ENDED_BY_HANDLER: Final = "the handler ended its own transaction; only its return may end it"
HELD_AS_DUPLICATE_BODY: Final = (
    "An earlier event has the same body under another id; requeue this job to run it"
)
ALTERED_ROWS: Final = (
    "a trigger or a rule on the table {table} discards or changes Onceward's rows. Drop it: "
    "docs/operating.md has the query that lists triggers"
)
LEASE_LOST: Final = "the lease expired before the job was settled; nothing was committed"


class LedgerTransaction(Protocol):
    """A transaction of named statements. Handlers have a `StoreTransaction` instead."""

    async def run(self, name: str, /, *conditions: str, **parameters: object) -> list[Row]:
        """Run a named statement, with the blocks of `conditions`, and return its rows."""

    async def record(self, arrivals: Sequence[Arrival]) -> list[Receipt]:
        """Record deliveries as part of the transaction; return their receipts, in order."""


class BaseStore(ABC):
    """The foundation of both stores."""

    def __init__(self) -> None:
        self._source_ids: dict[str, int] = {}
        self._handler_ids: dict[str, int] = {}
        self._payload_routes = PayloadRoutes()

    @abstractmethod
    async def _read(self, name: str, /, *conditions: str, **parameters: object) -> list[Row]:
        """Run a named statement that only reads, and return its rows."""

    @abstractmethod
    def _transaction(self, lock: Lock) -> AbstractAsyncContextManager[LedgerTransaction]:
        """Open a transaction that excludes others with the same lock, in every process."""

    async def load_body(self, job: Job) -> bytes:
        """Return the body of a job's event. Raise PermanentError if it is no longer stored."""
        rows = await self._read("load_body", event=job.event, received_at=job.received_at)
        if not rows:
            raise PermanentError("The payload of this event is no longer stored")
        return bytes(rows[0]["body"])

    async def watermark(self, handler: str, key: str) -> Watermark | None:
        """Return the watermark of a handler's key; None if it has applied no version."""
        rows = await self._read("watermark", handler=handler, key=key)
        return read_watermark(rows[0]) if rows else None

    async def was_routed(self, job: int) -> bool:
        """Return whether a person routed the event of a job to its handler."""
        rows = await self._read("was_routed", job=job)
        return bool(rows and rows[0]["was_routed"])

    async def filters_for(self, job: Job) -> list[str]:
        """Return the filters of the routes by which the handler of a job gets its event."""
        rows = await self._read(
            "filters_for", handler=job.handler, source=job.source, type=job.type
        )
        return [row["filter"] for row in rows]

    async def wait_until_lost(self) -> NoReturn:
        """Wait for ever: a server that replaces its database closes the connections."""
        while True:
            await asyncio.Event().wait()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the reasons why writes fail now, for everyone to see."""
        return ()


def inline_body_bytes(jobs: int) -> int:
    """Return the largest body that is loaded with a claim of some jobs."""
    return min(INLINE_BODY_BYTES, CLAIM_BODY_BYTES // jobs)


def require_durability(weak_settings: Sequence[str], *, allow_weak: bool) -> None:
    """Raise ConfigurationError if a setting of the database may lose acknowledged events."""
    if weak_settings and not allow_weak:
        advice = (
            "An acknowledged event could be lost. Fix the setting, or accept the loss with "
            "--allow-weak-durability (ONCEWARD_ALLOW_WEAK_DURABILITY=1)."
        )
        raise ConfigurationError([*(f"{setting}." for setting in weak_settings), advice])


def require_mark(key: str, marks: Sequence[Row], *, table: str) -> None:
    """Raise an error unless the effect under a key is a mark of `effects.once`."""
    if not marks:
        raise StoreBlocked(ALTERED_ROWS.format(table=table))
    if function := marks[0]["function"]:
        raise PermanentError(key_in_use(key, function, "effects.once"))


def read_watermark(row: Row) -> Watermark:
    """Return the watermark in a row."""
    version = parse_version(row["version"])
    return Watermark(version, row["event_id"], row["source"], row["applied_at"])


def watermark_parameters(handler: str, key: str, new: Watermark) -> dict[str, Any]:
    """Return the parameters of the statements that write a watermark."""
    return {
        "handler": handler,
        "key": key,
        "version": version_json(new.version),
        "event_id": new.event_id,
        "source": new.source,
    }


def error_statement(settlement: ErrorSettlement) -> str:
    """Return the name of the statement that settles an attempt that is not done."""
    match settlement:
        case Postpone():
            return "postpone"
        case Ignore():
            return "ignore"
        case _:
            return "settle_error"


def error_parameters(
    token: str, job: int, settlement: ErrorSettlement, elapsed_seconds: float
) -> dict[str, Any]:
    """Return the parameters of the statement that settles an attempt that is not done."""
    outcome: dict[str, Any]
    match settlement:
        case Postpone(delay_seconds=delay_seconds):
            outcome = {"delay_seconds": delay_seconds}
        case Reschedule(delay_seconds=delay_seconds):
            outcome = {"status": "queued", "delay_seconds": delay_seconds, "failure_type": None}
        case Fail(failure_type=failure_type):
            outcome = {"status": "failed", "delay_seconds": 0.0, "failure_type": failure_type}
        case Ignore(failure_type=failure_type):
            outcome = {"failure_type": failure_type}
    return {
        "token": token,
        "job": job,
        "error": settlement.error,
        "traceback": settlement.traceback,
        "elapsed_seconds": elapsed_seconds,
        "effect": settlement.effect if isinstance(settlement, Fail) else None,
        "counted": int(settlement.counts_attempt) if isinstance(settlement, Fail) else 1,
        **outcome,
    }
