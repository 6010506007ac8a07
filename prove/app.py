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
inbox.source(
    "partner",
    preset="hmac",
    unsigned=True,
    id="json:event_id",
    type="json:event_type",
    unknown_types="review",
)


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


async def give_up(event: Event[Payment], tx: Transaction) -> None:
    """Note that the job fails for good: exactly once for each such end."""
    await tx.execute("INSERT INTO given_up (event) VALUES (:event)", {"event": event.id})


@inbox.on("payment.made", transaction="shared", on_failed=give_up)
async def credit(event: Event[Payment], tx: Transaction) -> None:
    """Book the amount, then fail if the event asks for it: the booking must be rolled back."""
    await _book(event, tx, is_first=None)
    _fail_if_asked(event)


@inbox.on_batch("payment.batched", max_events=50, on_failed=give_up)
async def credit_all(events: list[Event[Payment]], tx: Transaction) -> None:
    """Book the amounts of many events, then fail if one of them asks for it."""
    for event in sorted(events, key=lambda each: each.payload.account):  # so as not to deadlock
        await _book(event, tx, is_first=None)
    for event in events:
        _fail_if_asked(event)


@inbox.on("payment.offered", transaction="shared", when={"wanted": True})
async def credit_offer(event: Event[Payment], tx: Transaction) -> None:
    """Book the amount of an event that the filter lets pass."""
    await _book(event, tx, is_first=None)


@inbox.on("payment.with_effect")
async def credit_once(event: Event[Payment], tx: Transaction, effects: Effects) -> None:
    """Book the amount under an idempotency key."""
    is_first = await effects.once(f"credit:{event.id}", reference=event.payload.account)
    await _book(event, tx, is_first=int(is_first))


def _fail_if_asked(event: Event[Payment]) -> None:
    match event.payload.behaviour:
        case "flaky" if random.random() < FLAKY_FAILURE_RATE:  # noqa: S311 - not a secret
            raise TransientError("try again")
        case "decline" if random.random() < DECLINE_RATE:  # noqa: S311 - not a secret
            raise PermanentError("declined")


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
