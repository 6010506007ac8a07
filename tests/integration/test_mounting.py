"""The inbox as a part of somebody's own application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from onceward import ConfigurationError, Inbox
from onceward.http.responses import ASGIApp
from support.database import RawDatabase
from support.postgres import Cluster
from tests.integration.running import make_inbox, partner_webhook, stripe_webhook

TOKEN = "a-token-of-ann-0123456789"
BEARER = {"authorization": f"Bearer {TOKEN}"}
EVENT = {"event_id": "evt_1", "event_type": "order.paid", "payload": {}}


@pytest.fixture
async def inbox(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inbox]:
    """An inbox to mount, once on each store."""
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
    inbox = make_inbox(database_url)
    yield inbox
    if inbox._mounted is not None:
        await inbox._mounted.close()


class Life:
    """An application between its start and its stop, as a server leads it through them."""

    def __init__(self, app: ASGIApp) -> None:
        self._from_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(
            app({"type": "lifespan"}, self._from_server.get, self._from_app.put)
        )

    async def say(self, what: str) -> Any:
        self._from_server.put_nowait({"type": f"lifespan.{what}"})
        return await asyncio.wait_for(self._from_app.get(), 10)


@asynccontextmanager
async def living(app: ASGIApp) -> AsyncIterator[None]:
    life = Life(app)
    assert await life.say("startup") == {"type": "lifespan.startup.complete"}
    yield
    assert await life.say("shutdown") == {"type": "lifespan.shutdown.complete"}
    await life._task


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app.example")


def mounted(inbox: Inbox) -> Starlette:
    return Starlette(
        routes=[
            Mount("/hooks", inbox.asgi()),
            Mount("/desk/of/operators", inbox.admin_asgi()),
        ]
    )


async def post_signed(http: httpx.AsyncClient, path: str, event_id: str) -> httpx.Response:
    sent = partner_webhook(event_id)
    return await http.post(f"{path}/webhooks/partner", content=sent.body, headers=sent.headers)


async def test_both_parts_share_one_ledger_and_need_no_lifespan(inbox: Inbox) -> None:
    async with client(mounted(inbox)) as http:
        answers = await asyncio.gather(*(post_signed(http, "/hooks", f"evt_{n}") for n in range(5)))
        assert [answer.status_code for answer in answers] == [202] * 5
        events = await http.get("/desk/of/operators/events", headers=BEARER)
        assert {event["event_id"] for event in events.json()["items"]} == {
            f"evt_{number}" for number in range(5)
        }


async def test_an_application_of_its_own_opens_at_its_start_and_closes_at_its_end(
    inbox: Inbox,
) -> None:
    app = inbox.asgi()
    for number in range(2):  # a server may be started again in the same process
        async with living(app), client(app) as http:
            assert (await post_signed(http, "", "evt_1")).json()["duplicate"] is bool(number)
    assert inbox._mounted is not None
    assert inbox._mounted.is_closed


async def test_the_receiving_part_receives_and_nothing_else(inbox: Inbox) -> None:
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
        answer = await http.post("/hooks/events/ingest", json=EVENT, headers=BEARER)
        assert answer.status_code == 202


async def test_the_admin_part_is_never_open(
    inbox: Inbox, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(mounted(inbox)) as http:
        for host in ("app.example", "localhost", "127.0.0.1"):
            for token in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer wrong"}):
                response = await http.get(
                    "/desk/of/operators/events", headers={"host": host, **token}
                )
                assert response.status_code == 401
        act = {"actor": "ann", "reason": "x"}
        response = await http.post("/desk/of/operators/jobs/1/requeue", json=act)
        assert response.status_code == 401
        assert (await http.post("/desk/of/operators/webhooks/lab")).status_code == 404
        assert inbox._mounted is not None
        await inbox._mounted.close()
    monkeypatch.delenv("ONCEWARD_ADMIN_TOKENS")
    without = make_inbox(database_url)
    async with client(without.admin_asgi()) as http:
        assert (await http.get("/events")).status_code == 401
        assert without._mounted is not None
        await without._mounted.close()
    assert RawDatabase(database_url).count("onceward.tokens") == 0


async def test_the_admin_part_has_its_lists_at_its_root(inbox: Inbox) -> None:
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
        ("/hooks", "/webhooks/partner"),  # as a mount passes it that strips the prefix
        ("/hooks/", "/hooks/webhooks/partner"),
        ("/web", "/webhooks/partner"),
    ],
)
async def test_it_finds_its_path_however_it_is_mounted(
    sqlite_url: str, root: str, path: str
) -> None:
    inbox = make_inbox(sqlite_url)
    transport = httpx.ASGITransport(inbox.asgi(), root_path=root)
    sent = partner_webhook("evt_1")
    async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as http:
        answer = await http.post(path, content=sent.body, headers=sent.headers)
    assert answer.status_code == 202
    assert inbox._mounted is not None
    await inbox._mounted.close()


async def test_a_start_that_fails_says_why(sqlite_url: str) -> None:
    life = Life(Inbox(f"{sqlite_url}?synchronous=off").asgi())
    said = await life.say("startup")
    assert said["type"] == "lifespan.startup.failed"
    assert "synchronous = 0" in said["message"]
    await life._task


async def test_a_second_process_on_the_same_sqlite_file_is_refused(sqlite_url: str) -> None:
    first, second = make_inbox(sqlite_url), make_inbox(sqlite_url)
    async with living(first.asgi()):
        said = await Life(second.asgi()).say("startup")
        assert said["type"] == "lifespan.startup.failed"
        assert "Another process serves" in said["message"]
        with pytest.raises(ConfigurationError, match="Another process serves"):
            async with client(second.asgi()) as http:
                await http.get("/healthz")


async def test_while_the_database_is_away_senders_are_told_to_come_back(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    inbox = make_inbox(postgres_url)
    async with client(inbox.asgi()) as http:
        postgres_cluster.crash()
        answer = await post_signed(http, "", "evt_1")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        postgres_cluster.start()
        assert (await post_signed(http, "", "evt_1")).status_code == 202
        assert inbox._mounted is not None
        await inbox._mounted.close()


async def test_a_websocket_is_turned_away(sqlite_url: str) -> None:
    said: asyncio.Queue[Any] = asyncio.Queue()

    async def nothing() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/webhooks/partner", "headers": []}
    await make_inbox(sqlite_url).asgi()(scope, nothing, said.put)
    assert said.get_nowait() == {"type": "websocket.close"}
