"""The app that the onceward command loads: one source, one handler."""

import os

import msgspec

from bench.contenders.interface import PLACE_VARIABLE, Place
from bench.deliveries import EVENT_TYPE, SECRET, SIGNATURE_HEADER
from bench.effects import INSERT, STATEMENTS, UPDATE
from onceward import Event, Inbox, Transaction

place = Place.from_json(os.environ[PLACE_VARIABLE])
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
    """Insert a row."""
    payment = event.payload
    await tx.execute(
        STATEMENTS[INSERT],
        {"event_id": payment.id, "account": payment.account, "amount": payment.amount},
    )


async def credit(event: Event[Payment], tx: Transaction) -> None:
    """Add to an account that other events add to."""
    payment = event.payload
    await tx.execute(STATEMENTS[UPDATE], {"account": payment.account, "amount": payment.amount})


_handler = {INSERT: book, UPDATE: credit}[place.workload]
inbox.on(EVENT_TYPE, name="payment", transaction=place.transaction)(_handler)
