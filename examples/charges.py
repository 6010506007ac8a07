"""Charge a card once, and mail the receipt once, even if the process dies in between.

Run: onceward serve examples/charges.py --dev
"""

from onceward import Applied, Effects, Event, Inbox, NotApplied, Transaction

inbox = Inbox()


class Bank:
    """Stands for a payment provider that honours idempotency keys."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}

    def charge(self, amount: int, key: str) -> str:
        """Charge an amount once for each key."""
        self.charges.setdefault(key, amount)
        return f"receipt-{key}"


bank = Bank()
outbox: dict[str, str] = {}
"""Stands for a mail provider without keys, which can be asked for what it sent."""


@inbox.effect(timeout_seconds=5, retry_safe_for="24h", not_applied=(ConnectionRefusedError,))
async def charge(amount: int, *, idempotency_key: str) -> str:
    """Charge a card. The bank recognises the key of a repeated charge."""
    return bank.charge(amount, idempotency_key)


async def find_mail(key: str, to: str, text: str) -> Applied | NotApplied:
    """Ask the mail provider whether a mail was sent."""
    return Applied() if outbox.get(key) == f"{to}: {text}" else NotApplied()


@inbox.effect(timeout_seconds=5, reconcile=find_mail)
async def send_mail(to: str, text: str, *, idempotency_key: str) -> None:
    """Send a mail. The provider would send it twice."""
    outbox[idempotency_key] = f"{to}: {text}"


@inbox.at_start
async def tables(tx: Transaction) -> None:
    """Keep the receipts beside the ledger."""
    await tx.execute(
        "CREATE TABLE IF NOT EXISTS receipts "
        "(order_id varchar(255) PRIMARY KEY, receipt text NOT NULL)"
    )


@inbox.on("order.placed")
async def bill(event: Event[dict[str, str]], effects: Effects, tx: Transaction) -> None:
    """Outside calls come first, then the transaction."""
    order, email = event.payload["order"], event.payload["email"]
    receipt = await effects.call(f"charge:{order}", charge, 5000)
    await effects.call(f"mail:{order}", send_mail, email, f"Your receipt: {receipt}")
    await tx.execute(
        "INSERT INTO receipts (order_id, receipt) VALUES (:order, :receipt) "
        "ON CONFLICT (order_id) DO NOTHING",
        {"order": order, "receipt": receipt},
    )
