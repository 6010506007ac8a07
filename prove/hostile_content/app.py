"""The inbox of the stage of hostile content: handlers note what they got, in many ways."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic

from onceward import Event, Inbox, MalformedPayload, Transaction
from prove import sabotage

WITNESS = "witness"
PAID = "paid"

inbox = Inbox()
inbox.source("shop", preset="hmac", unsigned=True, id="header:x-id", type="header:x-type")


class StructOrder(msgspec.Struct):
    """A payload, of which two members are read."""

    status: str = ""
    customer: str = ""


@dataclass
class DataclassOrder:
    """The same, as a dataclass."""

    status: str = ""
    customer: str = ""


class PydanticOrder(pydantic.BaseModel):
    """The same, with pydantic."""

    status: str = ""
    customer: str = ""


MODELS: dict[str, Any] = {
    "plain": None,
    "struct": StructOrder,
    "dataclass": DataclassOrder,
    "pydantic": PydanticOrder,
}
SHARED, BATCH = "shared", "batch"
FILTERED = (*MODELS, SHARED, BATCH)
"""The handlers that want paid orders, those of a customer one after the other."""


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    """Create the table of notes."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS notes "
        "(event varchar(255), handler varchar(255), decoded integer, status text, customer text)"
    )


async def note(tx: Transaction, event: Event[Any], handler: str, payload: object) -> None:
    """Note what a handler got. What is no text, or empty, is noted as NULL."""
    values = {"event": event.id, "handler": handler, "decoded": int(payload is not None)}
    for name in ("status", "customer"):
        found = payload.get(name) if isinstance(payload, dict) else getattr(payload, name, None)
        values[name] = (
            ascii(found) if isinstance(found, str) and found else None
        )  # PostgreSQL stores no NUL
    await tx.execute(
        "INSERT INTO notes VALUES (:event, :handler, :decoded, :status, :customer)", values
    )


@inbox.on("order", name=WITNESS)
async def witness(event: Event[Any], tx: Transaction) -> None:
    """Note every event, and whether it can be decoded."""
    try:
        payload = event.payload
    except MalformedPayload:
        payload = None
    else:
        payload = {} if payload is None else payload
    await note(tx, event, WITNESS, payload)


def noting(handler: str) -> Callable[..., Any]:
    """Return a handler that notes its events."""

    async def keep(event: Event[Any], tx: Transaction) -> None:
        await note(tx, event, handler, event.payload)

    return keep


for name, model in MODELS.items():
    inbox.on(
        "order",
        when={"status": PAID},
        ordering_key="customer",
        on_head_failed="continue",
        model=model,
        name=name,
    )(noting(name))
inbox.on("order", when={"status": PAID}, transaction="shared", name=SHARED)(noting(SHARED))


@inbox.on_batch("order", when={"status": PAID}, name=BATCH)
async def batch(events: list[Event[Any]], tx: Transaction) -> None:
    """Note many events in one call."""
    for event in events:
        await note(tx, event, BATCH, event.payload)


sabotage.apply()
