"""The inbox under test. Its handlers insert one row for each committed run."""

import os
import random

import msgspec

from onceward import Effects, Event, Inbox, PermanentError, Transaction
from prove import sabotage
from prove.probe_tables import TABLES

FLAKY_FAILURE_RATE = 0.5
DECLINE_RATE = 0.7

inbox = Inbox()


class Payment(msgspec.Struct):
    """The payload of an event."""

    account: str
    amount: int
    behaviour: str = ""


class TransientError(Exception):
    """A failure that a retry may resolve."""


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    """Create the tables that the checker reads."""
    for statement in TABLES:
        await tx.execute(statement)
    await sabotage.prepare(tx)


@inbox.on("payment.made", transaction="shared")
async def credit(event: Event[Payment], tx: Transaction) -> None:
    """Book the amount, then fail if the event asks for it: the booking must be rolled back."""
    await _book(event, tx, is_first=None)
    match event.payload.behaviour:
        case "flaky" if random.random() < FLAKY_FAILURE_RATE:  # noqa: S311 - not a secret
            raise TransientError("try again")
        case "decline" if random.random() < DECLINE_RATE:  # noqa: S311 - not a secret
            raise PermanentError("declined")


@inbox.on("payment.with_effect")
async def credit_once(event: Event[Payment], tx: Transaction, effects: Effects) -> None:
    """Book the amount under an idempotency key."""
    is_first = await effects.once(f"credit:{event.id}", reference=event.payload.account)
    await _book(event, tx, is_first=int(is_first))


async def _book(event: Event[Payment], tx: Transaction, *, is_first: int | None) -> None:
    tx = sabotage.writer_for(tx)
    await tx.execute(
        "INSERT INTO probes (event, worker, is_first) VALUES (:event, :worker, :is_first)",
        {"event": event.id, "worker": os.getpid(), "is_first": is_first},
    )
    await tx.execute(
        "INSERT INTO accounts (name, balance) VALUES (:name, :amount) "
        "ON CONFLICT (name) DO UPDATE SET balance = accounts.balance + :amount",
        {"name": event.payload.account, "amount": event.payload.amount},
    )


sabotage.apply()
