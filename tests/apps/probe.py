"""An inbox whose handler inserts one row for each committed run."""

import msgspec

from onceward import Effects, Event, Inbox, Transaction

inbox = Inbox()


class Payment(msgspec.Struct):
    account: str
    amount: int


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    # No constraint: work that is committed twice must show up twice.
    await tx.execute("CREATE TABLE IF NOT EXISTS probes (event varchar(255), is_first integer)")
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS accounts (name varchar(255) PRIMARY KEY, balance integer)"
    )


@inbox.on("payment.made")
async def credit(event: Event[Payment], tx: Transaction, effects: Effects) -> None:
    is_first = await effects.once(f"credit:{event.id}", reference=event.payload.account)
    await tx.execute(
        "INSERT INTO probes (event, is_first) VALUES (:event, :is_first)",
        {"event": event.id, "is_first": int(is_first)},
    )
    await tx.execute(
        "INSERT INTO accounts (name, balance) VALUES (:name, :amount) "
        "ON CONFLICT (name) DO UPDATE SET balance = accounts.balance + :amount",
        {"name": event.payload.account, "amount": event.payload.amount},
    )
