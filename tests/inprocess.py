"""An inbox that receives and works in the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from onceward import Inbox
from onceward.model.admin import EffectItem, JobItem, PageQuery
from onceward.service import Service
from support.database import RawDatabase
from support.processes import eventually_async

FAST = {"retry_base_seconds": 0.05, "lease_seconds": 5.0, "max_attempts": 3}


class RunningInbox:
    """A service with a worker, and a client for it."""

    def __init__(self, service: Service, http: httpx.AsyncClient) -> None:
        self.service = service
        self.store = service.store
        self._http = http

    async def post(self, event_type: str, payload: object = None, event_id: str = "evt_1") -> None:
        """Send an event, which must be accepted."""
        response = await self.try_post(event_type, payload, event_id)
        assert response.status_code == 202, response.text

    async def try_post(
        self, event_type: str, payload: object = None, event_id: str = "evt_1"
    ) -> httpx.Response:
        """Send an event, and return the response."""
        body = {"event_id": event_id, "event_type": event_type, "payload": payload}
        return await self._http.post("/events/ingest", json=body)

    async def deliver(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Send a webhook, and return the response."""
        return await self._http.post(path, content=body, headers=headers)

    async def items(self, kind: str) -> list[dict[str, Any]]:
        """Return the first page of a list of the admin API."""
        response = await self._http.get(f"/admin/{kind}")
        assert response.status_code == 200, response.text
        found: list[dict[str, Any]] = response.json()["items"]
        return found

    async def warnings(self) -> list[str]:
        """Return the warnings of ``/readyz``, which must be ready."""
        response = await self._http.get("/readyz")
        assert response.status_code == 200, response.text
        found: list[str] = response.json()["warnings"]
        return found

    async def jobs(self) -> dict[str, JobItem]:
        """Return all jobs, keyed by ``event id/handler``."""
        items = await self.store.jobs(PageQuery(limit=1000))
        return {f"{item.external_event_id}/{item.handler}": item for item in items}

    async def job(self, event_id: str = "evt_1") -> JobItem:
        """Return the only job of an event."""
        (item,) = await self.store.jobs(PageQuery(limit=10, event_id=event_id))
        return item

    async def effects(self) -> list[EffectItem]:
        """Return all effects, newest first."""
        return await self.store.effects(PageQuery(limit=1000))

    async def wait_until_idle(self) -> None:
        """Wait until every job has ended."""

        async def is_idle() -> bool:
            items = await self.store.jobs(PageQuery(limit=1000))
            return all(item.finished_at is not None for item in items)

        await eventually_async(is_idle, "every job has ended")

    async def wait_for_error(self, event_id: str = "evt_1") -> JobItem:
        """Wait until an attempt of the only job of an event has failed, and return the job."""

        async def failed() -> JobItem | None:
            item = await self.job(event_id)
            return item if item.last_error is not None else None

        found = await eventually_async(failed, "an attempt has failed")
        assert found is not None
        return found

    async def run_event(self, event_type: str, payload: object = None) -> JobItem:
        """Send one event, and return its only job when it has ended."""
        await self.post(event_type, payload)
        await self.wait_until_idle()
        return await self.job()


@asynccontextmanager
async def run_inbox(inbox: Inbox, url: str, **settings: Any) -> AsyncIterator[RunningInbox]:
    """Run an inbox, with one worker, on a database."""
    async with receive_only(inbox, url, **settings) as bench:
        worker = bench.service.worker()
        working = asyncio.create_task(worker.run())
        try:
            yield bench
        finally:
            worker.stop()
            await working


@asynccontextmanager
async def receive_only(inbox: Inbox, url: str, **settings: Any) -> AsyncIterator[RunningInbox]:
    """Run an inbox on a database, without a worker."""
    service = inbox.service({"database_url": url, **FAST, **settings}, dev=True)
    await service.open()
    transport = httpx.ASGITransport(app=service.app())
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield RunningInbox(service, http)
    finally:
        await service.close()


def notes(url: str) -> list[str]:
    """Return what handlers wrote into the table `notes`, sorted."""
    return sorted(text for (text,) in RawDatabase(url).rows("SELECT text FROM notes"))
