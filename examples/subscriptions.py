"""Activate a subscription once, however often its payment is announced. Run: make serve."""

import msgspec

from onceward import Effects, Event, Inbox, Transaction

inbox = Inbox(max_attempts=3)  # a demonstration should show a failed job soon, not after a day


class SubscriptionPaid(msgspec.Struct):
    """What the handler needs of the payload."""

    subscription_id: str


@inbox.at_start
async def tables(tx: Transaction) -> None:
    """Keep the subscriptions beside the ledger, so that one transaction covers both."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS subscriptions "
        "(id varchar(255) PRIMARY KEY, activations integer NOT NULL)"
    )


@inbox.on("subscription.paid")
async def activate_subscription(
    event: Event[SubscriptionPaid], tx: Transaction, effects: Effects
) -> None:
    """The effect's mark, the activation and the job's end commit together or not at all."""
    subscription = event.payload.subscription_id
    if await effects.once(f"activate_subscription:{subscription}", reference=subscription):
        await tx.execute(
            "INSERT INTO subscriptions (id, activations) VALUES (:id, 1) "
            "ON CONFLICT (id) DO UPDATE SET activations = subscriptions.activations + 1",
            {"id": subscription},
        )
