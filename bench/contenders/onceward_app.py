"""The inbox that the onceward command loads: one source, one handler, maybe a neighbour."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec

from bench.contenders.interface import CONFIG_VARIABLE, ContenderConfig
from bench.deliveries import EVENT_TYPE, SECRET, SIGNATURE_HEADER
from bench.neighbours import EVENT_TYPE as NEIGHBOUR_TYPE
from bench.neighbours import NAME, run_neighbour
from bench.shapes import EFFECTS, OWN, SYNC, WAITING, effect_key
from bench.workloads import INSERT, STATEMENTS, UPDATE, begin_job
from onceward import Effects, Event, Inbox, SyncTransaction, Transaction

config = ContenderConfig.from_json(os.environ[CONFIG_VARIABLE])
inbox = Inbox()
inbox.source(
    "bench", preset="hmac", secrets=[SECRET], signature_header=SIGNATURE_HEADER, id="json:id"
)


class Payment(msgspec.Struct):
    """The fields of the payload that the handlers use."""

    id: str
    account: int
    amount: int


def booking(payment: Payment) -> dict[str, str | int]:
    """Return the row to insert."""
    return {"event_id": payment.id, "account": payment.account, "amount": payment.amount}


async def book(event: Event[Payment], tx: Transaction) -> None:
    """Insert a row, maybe after a wait."""
    if config.job_seconds:
        await asyncio.sleep(begin_job(config))
    await tx.execute(STATEMENTS[INSERT], booking(event.payload))


async def book_once(event: Event[Payment], tx: Transaction, effects: Effects) -> None:
    """Insert a row if this is the first event with its key."""
    if await effects.once(effect_key(event.payload.id)):
        await tx.execute(STATEMENTS[INSERT], booking(event.payload))


def book_in_thread(event: Event[Payment], tx: SyncTransaction) -> None:
    """Insert a row, from the thread of a sync handler."""
    tx.execute(STATEMENTS[INSERT], booking(event.payload))


async def credit(event: Event[Payment], tx: Transaction) -> None:
    """Add to an account that other events add to as well."""
    payment = event.payload
    await tx.execute(STATEMENTS[UPDATE], {"account": payment.account, "amount": payment.amount})


_inserts: dict[str, Callable[..., Any]] = {
    OWN: book,
    EFFECTS: book_once,
    SYNC: book_in_thread,
    WAITING: book,
}
_handler = credit if config.workload == UPDATE else _inserts[config.shape]
inbox.on(EVENT_TYPE, name="payment", transaction=config.transaction)(_handler)


async def neighbour(event: Event[Payment], tx: Transaction) -> None:
    """Fail, wait or return at once, in a transaction as the measured handler has."""
    del event, tx
    await run_neighbour(config.neighbour)


if config.neighbour:
    inbox.on(NEIGHBOUR_TYPE, name=NAME)(neighbour)
