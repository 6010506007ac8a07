"""An inbox receives every published GitHub payload twice."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

import onceward
from onceward.model.admin import PageQuery
from onceward.ports import Store
from oracles import npm
from oracles.keys import plain_secret

PACKAGE = "@octokit/webhooks-examples"
MIN_PAYLOADS = 300
URL = "http://inbox.example/webhooks/github"


def corpus() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the event name and the body of each payload."""
    if not npm.is_installed(PACKAGE):
        pytest.skip(f"{PACKAGE} (npm) is not installed")
    index = npm.MODULES / PACKAGE / "api.github.com" / "index.json"
    for entry in json.loads(index.read_bytes()):
        for payload in entry["examples"]:
            yield entry["name"], payload


def signed_deliveries(secret: str) -> dict[str, tuple[str, httpx.Request]]:
    """Return the expected type and the signed request of each delivery, by delivery id."""
    deliveries = {}
    for number, (event, payload) in enumerate(corpus()):
        delivery = str(UUID(int=number))
        signed = onceward.sign(
            "github",
            secret=secret,
            headers={
                "Content-Type": "application/json",
                "X-GitHub-Event": event,
                "X-GitHub-Delivery": delivery,
            },
            body=json.dumps(payload, ensure_ascii=False).encode(),
        )
        action = payload.get("action")
        request = httpx.Request("POST", URL, headers=dict(signed.headers), content=signed.body)
        deliveries[delivery] = (f"{event}.{action}" if action else event, request)
    return deliveries


@asynccontextmanager
async def running_inbox(
    secret: str, folder: Path
) -> AsyncIterator[tuple[Store, httpx.AsyncClient]]:
    """Open an inbox on a new database; yield its store and an HTTP client for it."""
    inbox = onceward.Inbox()
    inbox.source("github", secrets=[secret])
    service = inbox.service({"database_url": f"sqlite:///{folder / 'onceward.db'}"}, dev=True)
    await service.open()
    try:
        transport = httpx.ASGITransport(app=service.app())
        async with httpx.AsyncClient(transport=transport) as client:
            yield service.store, client
    finally:
        await service.close()


async def test_each_payload_is_recorded_once_with_its_id_and_type(tmp_path: Path) -> None:
    secret = plain_secret().private
    deliveries = signed_deliveries(secret)
    assert len(deliveries) >= MIN_PAYLOADS
    async with running_inbox(secret, tmp_path) as (store, client):
        for is_redelivery in (False, True):
            for delivery, (_, request) in deliveries.items():
                receipt = (await client.send(request)).json()
                assert receipt["event_id"] == delivery
                assert receipt["duplicate"] is is_redelivery
            events = await store.events(PageQuery(limit=len(deliveries) + 1))
            recorded = {event.event_id: event.event_type for event in events}
            assert recorded == {id_: expected for id_, (expected, _) in deliveries.items()}
            assert len(events) == len(deliveries)
