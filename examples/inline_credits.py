"""Book the credits of paid orders within the request: the provider hears whether it succeeded."""

import os
from typing import Any

from onceward import Event, Inbox, PermanentError, Transaction

SECRET = os.environ.get("HOOKMESH_SECRET", "an-example-secret-of-hook-mesh")

inbox = Inbox()
inbox.source("hookmesh", scheme="body", secrets=[SECRET], mode="inline")


@inbox.at_start
async def tables(tx: Transaction) -> None:
    """Create the accounts."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS accounts (customer varchar(255) PRIMARY KEY, credits integer)"
    )


@inbox.on("order.paid", source="hookmesh")
async def book_credits(event: Event[Any], tx: Transaction) -> None:
    """Add the credits of an order to the customer's account, in one transaction with the event."""
    order = event.payload
    if order["credits"] <= 0:
        raise PermanentError("an order must have credits")
    await tx.execute(
        "INSERT INTO accounts (customer, credits) VALUES (:customer, :credits) "
        "ON CONFLICT (customer) DO UPDATE SET credits = accounts.credits + :credits",
        {"customer": order["customer"], "credits": order["credits"]},
    )
