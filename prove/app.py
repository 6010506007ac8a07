"""The inbox under proof. Its handlers leave one row for each of their runs that was committed."""

import os
import random

import msgspec

from onceward import Effects, Event, Inbox, PermanentError, Transaction
from prove import sabotage

TABLES = (
    # Without any constraint: what happens twice is to be seen twice.
    "CREATE TABLE IF NOT EXISTS probes (event varchar(255), worker integer, is_first integer)",
    "CREATE TABLE IF NOT EXISTS accounts (name varchar(255) PRIMARY KEY, balance bigint)",
)
VETO_SHARE = 0.7

inbox = Inbox()


class Payment(msgspec.Struct):
    """What an event books."""

    account: str
    amount: int
    mood: str = ""


class Stumbled(Exception):
    """What a handler raises that may do better the next time."""


@inbox.at_start
async def tables(tx: Transaction) -> None:
    """Make the tables that the proof reads."""
    for statement in TABLES:
        await tx.execute(statement)
    await sabotage.prepare(tx)


@inbox.on("payment.made", transaction="shared")
async def credit(event: Event[Payment], tx: Transaction) -> None:
    """Book, and only then fail, where that is the event's mood: what was booked must be undone."""
    await _book(event, tx, is_first=None)
    if event.payload.mood == "trips" and random.random() < 0.5:  # noqa: S311 - a stumble
        raise Stumbled("stumbled")
    if event.payload.mood == "vetoes" and random.random() < VETO_SHARE:  # noqa: S311 - a whim
        raise PermanentError("vetoed")


@inbox.on("payment.marked")
async def credit_once(event: Event[Payment], tx: Transaction, effects: Effects) -> None:
    """Book under a mark that is unique over the whole inbox."""
    is_first = await effects.once(f"credit:{event.id}", reference=event.payload.account)
    await _book(event, tx, is_first=int(is_first))


async def _book(event: Event[Payment], tx: Transaction, *, is_first: int | None) -> None:
    tx = sabotage.outside(tx)
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
