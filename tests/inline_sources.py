"""Inboxes with a source whose handlers run within the request, and webhooks for it."""

import json
from typing import Any

from onceward import Inbox, Transaction
from tests.integration.running import JSON, SignedWebhook, digest

SECRET = "an-example-secret-of-hook-mesh"
INSERT = "INSERT INTO notes (text) VALUES (:text)"


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
