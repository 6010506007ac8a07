"""The inbox that the onceward command loads: one source, one handler."""

import os

import msgspec

from bench.contenders.interface import CONFIG_VARIABLE, ContenderConfig
from bench.deliveries import EVENT_TYPE, SECRET, SIGNATURE_HEADER
from bench.workloads import INSERT, STATEMENTS, UPDATE
from onceward import Event, Inbox, Transaction

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


async def book(event: Event[Payment], tx: Transaction) -> None:
    """Insert a row."""
    payment = event.payload
    await tx.execute(
        STATEMENTS[INSERT],
        {"event_id": payment.id, "account": payment.account, "amount": payment.amount},
    )


async def credit(event: Event[Payment], tx: Transaction) -> None:
    """Add to an account that other events add to as well."""
    payment = event.payload
    await tx.execute(STATEMENTS[UPDATE], {"account": payment.account, "amount": payment.amount})


_handler = {INSERT: book, UPDATE: credit}[config.workload]
inbox.on(EVENT_TYPE, name="payment", transaction=config.transaction)(_handler)
