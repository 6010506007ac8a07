"""The app that the onceward command loads: one source, one handler."""

import os

import msgspec

from bench.deliveries import EVENT_TYPE, SECRET, SIGNATURE_HEADER
from bench.effects import OWN, SHARED, STATEMENTS
from onceward import Event, Inbox, Transaction

WORKLOAD_VARIABLE = "BENCH_WORKLOAD"

inbox = Inbox()
inbox.source(
    "bench", preset="hmac", secrets=[SECRET], signature_header=SIGNATURE_HEADER, id="json:id"
)


class Payment(msgspec.Struct):
    """What the handler needs of the payload."""

    id: str
    account: int
    amount: int


async def book(event: Event[Payment], tx: Transaction) -> None:
    """Write a row of its own."""
    payment = event.payload
    await tx.execute(
        STATEMENTS[OWN],
        {"event_id": payment.id, "account": payment.account, "amount": payment.amount},
    )


async def credit(event: Event[Payment], tx: Transaction) -> None:
    """Add to a row that others add to."""
    payment = event.payload
    await tx.execute(STATEMENTS[SHARED], {"account": payment.account, "amount": payment.amount})


_handler = credit if os.environ.get(WORKLOAD_VARIABLE) == SHARED else book
inbox.on(EVENT_TYPE, name="payment", transaction="shared")(_handler)
