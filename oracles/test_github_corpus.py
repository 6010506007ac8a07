"""Every payload that GitHub is known to send, received by an inbox, and received again."""

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
    """The name of each event, with one payload of it."""
    if not npm.is_installed(PACKAGE):
        pytest.skip(f"npm's {PACKAGE} is not installed")
    index = npm.MODULES / PACKAGE / "api.github.com" / "index.json"
    for entry in json.loads(index.read_bytes()):
        for payload in entry["examples"]:
            yield entry["name"], payload


def deliveries(secret: str) -> dict[str, tuple[str, httpx.Request]]:
    """The type that is expected, and the request, of each delivery by its id."""
    found = {}
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
        sent = httpx.Request("POST", URL, headers=dict(signed.headers), content=signed.body)
        found[delivery] = (f"{event}.{action}" if action else event, sent)
    return found


@asynccontextmanager
async def receiving(secret: str, folder: Path) -> AsyncIterator[tuple[Store, httpx.AsyncClient]]:
    """The store of an inbox, on a file of its own, and a client for the inbox."""
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


async def test_each_payload_is_recorded_once_under_its_id_and_its_type(tmp_path: Path) -> None:
    secret = plain_secret().private
    sent = deliveries(secret)
    assert len(sent) >= MIN_PAYLOADS
    async with receiving(secret, tmp_path) as (store, client):
        for is_repeated in (False, True):
            for delivery, (_, request) in sent.items():
                answer = (await client.send(request)).json()
                assert answer["event_id"] == delivery
                assert answer["duplicate"] is is_repeated
            events = await store.events(PageQuery(limit=len(sent) + 1))
            recorded = {event.event_id: event.event_type for event in events}
            assert recorded == {delivery: expected for delivery, (expected, _) in sent.items()}
            assert len(events) == len(sent)
