"""Keep orders with writes that may run twice: two events about one order, in any number.

Run: onceward serve examples/orders.py --dev
"""

import msgspec

from onceward import Event, Inbox, Transaction, transition, upsert

inbox = Inbox()


class Order(msgspec.Struct):
    """What the handlers need of the payload."""

    order: str
    email: str = ""


@inbox.at_start
async def tables(tx: Transaction) -> None:
    """Keep the orders beside the ledger, so that one transaction covers both."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS orders "
        "(id varchar(255) PRIMARY KEY, email text, status text NOT NULL DEFAULT 'open')"
    )
    await tx.execute("CREATE TABLE IF NOT EXISTS parcels (order_id varchar(255))")


@inbox.on("order.placed", "order.changed")
async def store(event: Event[Order], tx: Transaction) -> None:
    """Set the address, never add to anything."""
    await upsert(tx, "orders", {"id": event.payload.order}, {"email": event.payload.email})


@inbox.on("order.paid", "invoice.paid")
async def ship(event: Event[Order], tx: Transaction) -> None:
    """Two events say that an order is paid. The first one moves it, and packs the parcel."""
    order = event.payload.order
    if await transition(tx, "orders", order, to="paid", only_from="open"):
        await tx.execute("INSERT INTO parcels VALUES (:order)", {"order": order})
