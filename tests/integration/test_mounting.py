"""The inbox mounted in a user's own application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from onceward import ConfigurationError, Inbox
from onceward import service as service_module
from onceward.http.responses import ASGIApp
from support.database import RawDatabase
from support.postgres import Cluster
from support.processes import eventually_async
from tests.integration.running import make_inbox, partner_webhook, stripe_webhook

TOKEN = "token-of-ann-0123456789"
BEARER = {"authorization": f"Bearer {TOKEN}"}
EVENT = {"event_id": "evt_1", "event_type": "order.paid", "payload": {}}


@pytest.fixture
async def inbox(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inbox]:
    """Return an inbox to mount, on each store."""
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
    inbox = make_inbox(database_url)
    yield inbox
    if inbox._mounted is not None:
        await inbox._mounted.close()


class Lifespan:
    """The lifespan protocol of an application, from the server's side."""

    def __init__(self, app: ASGIApp) -> None:
        self._from_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(
            app({"type": "lifespan"}, self._from_server.get, self._from_app.put)
        )

    async def send(self, event: str) -> Any:
        self._from_server.put_nowait({"type": f"lifespan.{event}"})
        return await asyncio.wait_for(self._from_app.get(), 10)


@asynccontextmanager
async def running(app: ASGIApp) -> AsyncIterator[None]:
    lifespan = Lifespan(app)
    assert await lifespan.send("startup") == {"type": "lifespan.startup.complete"}
    yield
    assert await lifespan.send("shutdown") == {"type": "lifespan.shutdown.complete"}
    await lifespan._task


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app.example")


def mounted(inbox: Inbox) -> Starlette:
    return Starlette(
        routes=[
            Mount("/hooks", inbox.asgi()),
            Mount("/ops/inbox", inbox.admin_asgi()),
        ]
    )


async def post_signed(http: httpx.AsyncClient, path: str, event_id: str) -> httpx.Response:
    sent = partner_webhook(event_id)
    return await http.post(f"{path}/webhooks/partner", content=sent.body, headers=sent.headers)


async def test_both_apps_share_one_ledger_and_need_no_lifespan(inbox: Inbox) -> None:
    async with client(mounted(inbox)) as http:
        responses = await asyncio.gather(
            *(post_signed(http, "/hooks", f"evt_{n}") for n in range(5))
        )
        assert [response.status_code for response in responses] == [202] * 5
        events = await http.get("/ops/inbox/events", headers=BEARER)
        assert {event["event_id"] for event in events.json()["items"]} == {
            f"evt_{number}" for number in range(5)
        }


async def test_a_standalone_app_opens_at_startup_and_closes_at_shutdown(
    inbox: Inbox,
) -> None:
    app = inbox.asgi()
    for number in range(2):  # a server may be started again in the same process
        async with running(app), client(app) as http:
            assert (await post_signed(http, "", "evt_1")).json()["duplicate"] is bool(number)
    assert inbox._mounted is not None
    assert inbox._mounted.is_closed


async def test_the_receiving_app_only_receives(inbox: Inbox) -> None:
    async with client(mounted(inbox)) as http:
        sent = stripe_webhook("evt_1")
        response = await http.post(
            "/hooks/webhooks/stripe", content=sent.body, headers=sent.headers
        )
        assert response.status_code == 202
        assert (await http.get("/hooks/healthz")).status_code == 200
        assert (await http.get("/hooks/readyz")).status_code == 200
        assert (await http.get("/hooks/admin/events", headers=BEARER)).status_code == 404
        assert (await http.get("/hooks/events", headers=BEARER)).status_code == 404
        assert (await http.post("/hooks/webhooks/stripe", content=b"{}")).status_code == 401
        assert (await http.post("/hooks/events/ingest", json=EVENT)).status_code == 401
        response = await http.post("/hooks/events/ingest", json=EVENT, headers=BEARER)
        assert response.status_code == 202


async def test_the_admin_app_always_needs_a_token(
    inbox: Inbox, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(mounted(inbox)) as http:
        for host in ("app.example", "localhost", "127.0.0.1"):
            for token in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer wrong"}):
                response = await http.get("/ops/inbox/events", headers={"host": host, **token})
                assert response.status_code == 401
        action = {"actor": "ann", "reason": "x"}
        response = await http.post("/ops/inbox/jobs/1/requeue", json=action)
        assert response.status_code == 401
        assert (await http.post("/ops/inbox/webhooks/lab")).status_code == 404
        assert inbox._mounted is not None
        await inbox._mounted.close()
    monkeypatch.delenv("ONCEWARD_ADMIN_TOKENS")
    tokenless = make_inbox(database_url)
    async with client(tokenless.admin_asgi()) as http:
        assert (await http.get("/events")).status_code == 401
        assert tokenless._mounted is not None
        await tokenless._mounted.close()
    assert RawDatabase(database_url).count("onceward.tokens") == 0


async def test_the_admin_app_has_its_lists_at_its_root(inbox: Inbox) -> None:
    async with client(inbox.admin_asgi()) as http:
        for kind in ("events", "jobs", "effects", "deliveries", "audit"):
            response = await http.get(f"/{kind}", headers=BEARER)
            assert response.json() == {"items": [], "limit": 50, "next": None}
        response = await http.post("/jobs/1/requeue", json={"actor": "a", "reason": "r"})
        assert response.status_code == 401


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("", "/webhooks/partner"),
        ("/hooks", "/hooks/webhooks/partner"),  # as Starlette passes it
        ("/hooks", "/webhooks/partner"),  # as a mount that strips the prefix passes it
        ("/hooks/", "/hooks/webhooks/partner"),
        ("/web", "/webhooks/partner"),
    ],
)
async def test_routes_work_with_every_kind_of_mount(sqlite_url: str, root: str, path: str) -> None:
    inbox = make_inbox(sqlite_url)
    transport = httpx.ASGITransport(inbox.asgi(), root_path=root)
    sent = partner_webhook("evt_1")
    async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as http:
        response = await http.post(path, content=sent.body, headers=sent.headers)
    assert response.status_code == 202
    assert inbox._mounted is not None
    await inbox._mounted.close()


async def test_a_mounted_inbox_warns_until_a_worker_runs(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_module, "HEARTBEAT_SECONDS", 0.05)

    async def warnings() -> list[str]:
        response = await http.get("/readyz")
        assert response.status_code == 200
        found: list[str] = response.json()["warnings"]
        return found

    async def is_well() -> bool:
        return not await warnings()

    app = make_inbox(postgres_url).asgi()
    async with running(app), client(app) as http:
        (warning,) = await eventually_async(warnings, "the inbox warns")
        assert "No worker has been seen since" in warning
        assert "`onceward work app.py`" in warning
        assert "No worker has been seen since" in caplog.text
        service = make_inbox(postgres_url).service()
        await service.open()
        worker = service.worker()
        task = asyncio.create_task(worker.run())
        await eventually_async(is_well, "the worker is noticed")
        worker.stop()
        await task
        await service.close()
        await eventually_async(warnings, "the inbox warns again")


async def test_a_mounted_inbox_on_sqlite_names_the_one_process(sqlite_url: str) -> None:
    app = make_inbox(sqlite_url).asgi()

    async def warnings() -> list[str]:
        found: list[str] = (await http.get("/readyz")).json()["warnings"]
        return found

    async with running(app), client(app) as http:
        (warning,) = await eventually_async(warnings, "the inbox warns")
        assert "SQLite supports one process: run `onceward serve app.py`" in warning


async def test_a_failed_startup_reports_the_reason(sqlite_url: str) -> None:
    lifespan = Lifespan(Inbox(f"{sqlite_url}?synchronous=off").asgi())
    failure = await lifespan.send("startup")
    assert failure["type"] == "lifespan.startup.failed"
    assert "synchronous = 0" in failure["message"]
    await lifespan._task


async def test_a_second_process_on_the_same_sqlite_file_is_rejected(sqlite_url: str) -> None:
    first, second = make_inbox(sqlite_url), make_inbox(sqlite_url)
    async with running(first.asgi()):
        failure = await Lifespan(second.asgi()).send("startup")
        assert failure["type"] == "lifespan.startup.failed"
        assert "Another process serves" in failure["message"]
        with pytest.raises(ConfigurationError, match="Another process serves"):
            async with client(second.asgi()) as http:
                await http.get("/healthz")


async def test_senders_get_503_while_the_database_is_down(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    inbox = make_inbox(postgres_url)
    async with client(inbox.asgi()) as http:
        postgres_cluster.crash()
        response = await post_signed(http, "", "evt_1")
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        postgres_cluster.start()
        assert (await post_signed(http, "", "evt_1")).status_code == 202
        assert inbox._mounted is not None
        await inbox._mounted.close()


async def test_a_websocket_is_closed(sqlite_url: str) -> None:
    sent: asyncio.Queue[Any] = asyncio.Queue()

    async def connect() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/webhooks/partner", "headers": []}
    await make_inbox(sqlite_url).asgi()(scope, connect, sent.put)
    assert sent.get_nowait() == {"type": "websocket.close"}
