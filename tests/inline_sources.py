"""Inboxes with a source whose handlers run within the request, and webhooks for it."""

import asyncio
import json
from typing import Any

from onceward import Event, Inbox, PermanentError, Transaction
from support.processes import eventually_async
from tests.inprocess import RunningInbox
from tests.integration.running import JSON, SignedWebhook, digest

SECRET = "an-example-secret-of-hook-mesh"
INSERT = "INSERT INTO notes (text) VALUES (:text)"
Answer = tuple[int, Any]


def inline_inbox(url: str | None = None, **settings: Any) -> Inbox:
    """Return an inbox with an inline source of Hook Mesh, and a table for its handlers."""
    inbox = Inbox(url, **settings)
    inbox.source("hookmesh", scheme="body", secrets=[SECRET], mode="inline")

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS notes (text varchar(255))")

    return inbox


def hookmesh_webhook(
    event_id: str = "evt_1", event_type: str = "order.paid", source: str = "hookmesh", **more: Any
) -> SignedWebhook:
    """Return a webhook with Hook Mesh's signature of the body."""
    body = json.dumps({"event_id": event_id, "event_type": event_type, **more}).encode()
    return SignedWebhook(source, body, JSON | {"x-hookmesh-signature": digest(SECRET, body)})


async def send(bench: RunningInbox, webhook: SignedWebhook) -> Answer:
    """Send a webhook, and return the status and the body of the response."""
    path = f"/webhooks/{webhook.source}"
    response = await bench._http.post(path, content=webhook.body, headers=webhook.headers)
    return response.status_code, response.json() if response.content else None


class Gate:
    """Lets the handlers of a test wait, and tells how many do."""

    def __init__(self) -> None:
        self.waiting = 0
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.waiting += 1
        await self.opened.wait()

    async def wait_for(self, count: int) -> None:
        async def are_waiting() -> bool:
            return self.waiting >= count

        await eventually_async(are_waiting, f"{count} handlers wait")


def noting_inbox(gate: Gate | None = None) -> Inbox:
    """Return an inbox whose handler waits for the gate, then writes a note."""
    inbox = inline_inbox()

    @inbox.on("order.*", source="hookmesh")
    async def note(event: Event[Any], tx: Transaction) -> None:
        if gate is not None:
            await gate.pass_through()
        if event.payload.get("is_broken"):
            raise PermanentError("no such order")
        await tx.execute(INSERT, {"text": event.id})

    return inbox


def events_webhook(*ids: str, source: str = "gocardless") -> SignedWebhook:
    """Return a webhook of GoCardless with several events."""
    events = [{"id": each, "resource_type": "payments", "action": "paid"} for each in ids]
    body = json.dumps({"events": events}).encode()
    return SignedWebhook(source, body, JSON | {"webhook-signature": digest(SECRET, body)})
