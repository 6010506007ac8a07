"""Ship paid orders: filters reject the others, and a person reviews types that nobody expected."""

import os
from typing import Any

from onceward import Event, Inbox, Transaction

SECRET = os.environ.get("SHOP_SECRET", "an-example-secret-of-the-shop")
MIN_INSURED = 100

inbox = Inbox()
inbox.source("shop", preset="hmac", secrets=[SECRET], unknown_types="review")


@inbox.at_start
async def tables(tx: Transaction) -> None:
    """Create the shipments."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS shipments (order_id varchar(255), insured integer NOT NULL)"
    )


@inbox.on("order.*", source="shop", when={"order.status": "paid", "test": [False, None]})
async def ship(event: Event[Any], tx: Transaction) -> None:
    """Ship an order. The filter is applied when the event is recorded: others get no job."""
    await tx.execute(
        "INSERT INTO shipments (order_id, insured) VALUES (:order, 0)",
        {"order": event.payload["order"]["id"]},
    )


@inbox.on(
    "order.*", source="shop", when=lambda event: event.payload["order"]["total"] > MIN_INSURED
)
async def insure(event: Event[Any], tx: Transaction) -> None:
    """Insure an expensive order. The function runs in the worker, before the handler."""
    await tx.execute(
        "INSERT INTO shipments (order_id, insured) VALUES (:order, 1)",
        {"order": event.payload["order"]["id"]},
    )
