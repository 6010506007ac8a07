"""An inbox at work in the test's own process: post to it, wait for rest, look at its jobs."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from onceward import Inbox
from onceward.model.admin import EffectItem, JobItem, PageQuery
from onceward.service import Service
from support.processes import TooLate

FAST = {"retry_base_seconds": 0.05, "lease_seconds": 5.0}
REST_SECONDS = 15.0


class Bench:
    """A service with a worker, and a client for it."""

    def __init__(self, service: Service, http: httpx.AsyncClient) -> None:
        self.service = service
        self.store = service.store
        self._http = http

    async def post(self, event_type: str, payload: object = None, event_id: str = "evt_1") -> None:
        """Send an event, which must be accepted."""
        body = {"event_id": event_id, "event_type": event_type, "payload": payload}
        response = await self._http.post("/events/ingest", json=body)
        assert response.status_code == 202, response.text

    async def jobs(self) -> dict[str, JobItem]:
        """All jobs, each by its event's id and its handler's name."""
        items = await self.store.jobs(PageQuery(limit=1000))
        return {f"{item.external_event_id}/{item.handler}": item for item in items}

    async def job(self, event_id: str = "evt_1") -> JobItem:
        """The only job of an event."""
        (item,) = await self.store.jobs(PageQuery(limit=10, event_id=event_id))
        return item

    async def effects(self) -> list[EffectItem]:
        """All effects, the newest first."""
        return await self.store.effects(PageQuery(limit=1000))

    async def rest(self) -> None:
        """Wait until no job is left to do."""

        async def look() -> bool:
            items = await self.store.jobs(PageQuery(limit=1000))
            return all(item.finished_at is not None for item in items)

        await eventually(look, "no job is left to do")

    async def settled(self, event_type: str, payload: object = None) -> JobItem:
        """Send one event, and answer with how its only job ended."""
        await self.post(event_type, payload)
        await self.rest()
        return await self.job()


async def eventually(
    look: Callable[[], Awaitable[bool]], what: str, seconds: float = REST_SECONDS
) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + seconds
    while not await look():
        if time.monotonic() > deadline:
            raise TooLate(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.01)


@asynccontextmanager
async def at_work(inbox: Inbox, url: str, **settings: Any) -> AsyncIterator[Bench]:
    """An inbox, receiving and working, on a database."""
    service = inbox.service({"database_url": url, **FAST, **settings}, dev=True)
    await service.open()
    worker = service.worker()
    working = asyncio.create_task(worker.run())
    transport = httpx.ASGITransport(app=service.app())
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Bench(service, http)
    finally:
        worker.stop()
        await working
        await service.close()
