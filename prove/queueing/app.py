"""The inbox under test of the queue's stages.

A handler marks its start and its end in a file, and inserts one row into `runs` in its
transaction. `position` is the number of rows of its key that it saw: two jobs of a key that ran at
once and both committed have the same one.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from onceward import Event, Inbox, PermanentError, Transaction, service
from onceward.model.jobs import ClaimRequest
from onceward.ports import Row
from onceward.store.postgres.claiming import Claims
from onceward.store.postgres.connections import Connection
from prove import sabotage
from prove.queueing.events import CONCURRENCY, RATE, Behaviour, Handler
from prove.queueing.markers import CLAIM, END, START, VARIABLE, MarkerFolder

FAILURE_RATE = 0.5
SECONDS = 0.004
CAPPED_SECONDS = 0.03
LONG_SECONDS = 0.4
SLOW_SECONDS = 0.8
GATE_SECONDS = 0.02
NEVER_SECONDS = 86_400.0

inbox = Inbox()
inbox.source("shop", preset="hmac", unsigned=True, id="json:id", type="json:type")
markers = MarkerFolder(Path(os.environ[VARIABLE]))


class Order(msgspec.Struct):
    """The payload of an event."""

    key: str
    behaviour: str = ""


class TransientError(Exception):
    """A failure that a retry may resolve."""


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    """Create the table that the checker reads, without a constraint."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS runs "
        "(handler varchar(20), ordering_key varchar(255), event varchar(255), position integer)"
    )
    await tx.execute("CREATE INDEX IF NOT EXISTS runs_by_key ON runs (handler, ordering_key)")
    await sabotage.prepare(tx)


@contextmanager
def _marked(handler: Handler, event: Event[Order]) -> Iterator[None]:
    markers.write(START, handler, event.source, event.id)
    try:
        yield
    finally:
        markers.write(END, handler, event.source, event.id)


async def _run(handler: Handler, event: Event[Order], tx: Transaction, seconds: float) -> None:
    """Write a row, wait, then fail if the event asks for it: the row must be rolled back."""
    parameters = {"handler": handler.value, "key": event.payload.key}
    with _marked(handler, event):
        if event.payload.behaviour == Behaviour.LONG:
            await asyncio.sleep(LONG_SECONDS)
        row = await tx.fetch_one(
            "SELECT count(*) AS position FROM runs "
            "WHERE handler = :handler AND ordering_key = :key",
            parameters,
        )
        await tx.execute(
            "INSERT INTO runs (handler, ordering_key, event, position) "
            "VALUES (:handler, :key, :event, :position)",
            {**parameters, "event": event.id, "position": row["position"] if row else 0},
        )
        await asyncio.sleep(seconds)
        if random.random() < FAILURE_RATE:  # noqa: S311 - not a secret
            _fail(event.payload.behaviour)


def _fail(behaviour: str) -> None:
    if behaviour == Behaviour.TRANSIENT:
        raise TransientError("try again")
    if behaviour == Behaviour.PERMANENT:
        raise PermanentError("declined")


@inbox.on("hold", ordering_key="key", on_head_failed="hold")
async def hold(event: Event[Order], tx: Transaction) -> None:
    """Run the jobs of a key in order; a failed one holds the others."""
    await _run(Handler.HOLD, event, tx, SECONDS)


@inbox.on("continue", name="continue", ordering_key="key", on_head_failed="continue")
async def continue_after_failure(event: Event[Order], tx: Transaction) -> None:
    """Run the jobs of a key in order; the others continue after a failed one."""
    await _run(Handler.CONTINUE, event, tx, SECONDS)


@inbox.on("capped", concurrency=CONCURRENCY)
async def capped(event: Event[Order], tx: Transaction) -> None:
    """Run long enough for jobs to overlap."""
    with _marked(Handler.CAPPED, event):
        await asyncio.sleep(CAPPED_SECONDS)
    await _insert(Handler.CAPPED, event, tx)


@inbox.on("rated", rate=f"{RATE}/s")
async def rated(event: Event[Order], tx: Transaction) -> None:
    """Start at a limited rate."""
    await _run(Handler.RATED, event, tx, SECONDS)


@inbox.on("noted")
async def noted(event: Event[Order], tx: Transaction) -> None:
    """Run without order and limits."""
    await _run(Handler.NOTED, event, tx, SECONDS)


@inbox.on("quick")
async def quick(event: Event[Order], tx: Transaction) -> None:
    """Return at once."""
    await _run(Handler.QUICK, event, tx, 0)


@inbox.on("failing")
async def failing(event: Event[Order]) -> None:
    """Fail always."""
    with _marked(Handler.FAILING, event):
        raise TransientError("never again")


@inbox.on("slow")
async def slow(event: Event[Order]) -> None:
    """Take long."""
    with _marked(Handler.SLOW, event):
        await asyncio.sleep(SLOW_SECONDS)


@inbox.on("gated")
async def gated(event: Event[Order], tx: Transaction) -> None:
    """Run until the gate is opened."""
    with _marked(Handler.GATED, event):
        while markers.is_gate_closed:  # noqa: ASYNC110 - other processes open the gate
            await asyncio.sleep(GATE_SECONDS)
    await _insert(Handler.GATED, event, tx)


async def _insert(handler: Handler, event: Event[Order], tx: Transaction) -> None:
    await tx.execute(
        "INSERT INTO runs (handler, ordering_key, event, position) "
        "VALUES (:handler, :key, :event, -1)",
        {"handler": handler.value, "key": event.payload.key, "event": event.id},
    )


def _time_claims() -> None:
    """Mark the duration of every claim on PostgreSQL."""
    claim = Claims.claim

    async def claim_timed(
        claims: Claims,
        connection: Connection,
        request: ClaimRequest,
        handler_ids: Mapping[str, int],
    ) -> tuple[Row, Row]:
        started = time.monotonic()
        result = await claim(claims, connection, request, handler_ids)
        markers.write(CLAIM, "", "", f"{time.monotonic() - started:.6f}")
        return result

    Claims.claim = claim_timed  # type: ignore[method-assign,assignment] # a probe


# The periodic search for parked jobs would hide a wake-up that was lost.
vars(service)["WAKE_INTERVAL_SECONDS"] = NEVER_SECONDS
_time_claims()
sabotage.apply()
