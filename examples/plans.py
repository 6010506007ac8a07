"""Keep the newest state of each plan: an update that arrives late brings no cancelled one back."""

import msgspec

from onceward import Event, Inbox, Transaction

inbox = Inbox(max_attempts=3)


class Plan(msgspec.Struct):
    """What the handler needs of the payload."""

    id: str
    status: str


@inbox.at_start
async def tables(tx: Transaction) -> None:
    """Keep the plans beside the ledger, so that one transaction covers both."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS plans (id varchar(255) PRIMARY KEY, status text NOT NULL)"
    )


@inbox.on("plan.*", version="changed_at", version_key="id")
async def store_plan(event: Event[Plan], tx: Transaction) -> None:
    """The plan, its newest version and the job's end commit together or not at all."""
    plan = event.payload
    await tx.execute(
        "INSERT INTO plans (id, status) VALUES (:id, :status) "
        "ON CONFLICT (id) DO UPDATE SET status = :status",
        {"id": plan.id, "status": plan.status},
    )
