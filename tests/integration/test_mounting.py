"""The inbox mounted in a user's own application."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from onceward import ConfigurationError, Inbox, Transaction
from onceward import service as service_module
from onceward.http.responses import ASGIApp
from onceward.runtime.redact import redact_url
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
        response = await http.get("/events", headers=BEARER)
        assert response.status_code == 401
        assert response.json()["message"] == (
            "No admin token is set. Set ONCEWARD_ADMIN_TOKENS=name:token, or run "
            "`onceward serve app.py` once, which creates a token; then restart this app."
        )
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


@pytest.mark.parametrize("path", ["/ops/inbox", "/ops/inbox/"])
async def test_a_mounted_admin_app_lists_its_lists(inbox: Inbox, path: str) -> None:
    async with client(mounted(inbox)) as http:
        response = await http.get(path, headers=BEARER, follow_redirects=True)
        index = response.json()
        assert "/ops/inbox/jobs" in index["look"]
        for each in (*index["look"], index["document"]):
            assert (await http.get(each, headers=BEARER)).status_code == 200


MOUNTS = [
    ("", "/webhooks/partner"),
    ("/hooks", "/hooks/webhooks/partner"),  # as Starlette passes it
    ("/hooks", "/webhooks/partner"),  # as a mount that strips the prefix passes it
    ("/hooks/", "/hooks/webhooks/partner"),
    ("/web", "/webhooks/partner"),
]


async def test_routes_work_with_every_kind_of_mount(
    sqlite_url: str, subtests: pytest.Subtests
) -> None:
    for number, (root, path) in enumerate(MOUNTS):
        with subtests.test(f"{root} {path}"):
            inbox = make_inbox(sqlite_url)
            transport = httpx.ASGITransport(inbox.asgi(), root_path=root)
            sent = partner_webhook(f"evt_{number}")
            async with httpx.AsyncClient(
                transport=transport, base_url="http://app.example"
            ) as http:
                response = await http.post(path, content=sent.body, headers=sent.headers)
            assert inbox._mounted is not None
            await inbox._mounted.close()
            assert response.status_code == 202
            assert response.json()["duplicate"] is False


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
        assert "postgresql:" not in warning  # anyone can read it
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
        assert 'only inline sources (mode="inline") run their handlers' in warning
        assert "Use PostgreSQL and run `onceward work app.py`" in warning
        assert "or remove the mount and run `onceward serve app.py`" in warning


async def test_a_sender_that_disconnects_gets_no_response_and_no_log_line(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_inbox(sqlite_url).asgi()
    signed = [(b"stripe-signature", b"t=1,v1=00")]
    scope = {"type": "http", "method": "POST", "path": "/webhooks/stripe", "headers": signed}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async with running(app):
        await app(scope, receive, send)
    assert sent == []
    assert "onceward.http" not in {line.name for line in caplog.records}


async def test_a_mounted_inbox_without_handlers_warns(database_url: str) -> None:
    app = Inbox(database_url).asgi()

    async def warnings() -> list[str]:
        found: list[str] = (await http.get("/readyz")).json()["warnings"]
        return found

    async with running(app), client(app) as http:
        (warning,) = await eventually_async(warnings, "the inbox warns")
        assert warning.startswith("This inbox has no handlers, and no worker has registered any")


async def test_a_mounted_inbox_says_why_it_is_on_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONCEWARD_DATABASE_URL", raising=False)
    inbox = Inbox()

    @inbox.on("order.paid")
    async def credit(event: Any) -> None: ...

    async def warning() -> str:
        lines = [entry.getMessage() for entry in caplog.records if entry.name == "onceward.workers"]
        return next(iter(lines), "")

    async with running(inbox.asgi()):
        line = await eventually_async(warning, "the inbox warns")
    assert line.endswith(
        "ONCEWARD_DATABASE_URL is not set, so the database is sqlite:///onceward.db."
    )


async def test_a_failed_startup_reports_the_reason(sqlite_url: str) -> None:
    lifespan = Lifespan(Inbox(f"{sqlite_url}?synchronous=off").asgi())
    failure = await lifespan.send("startup")
    assert failure["type"] == "lifespan.startup.failed"
    assert "synchronous = 0" in failure["message"]
    await lifespan._task


async def test_a_failed_preparation_is_reported_in_one_line(database_url: str) -> None:
    inbox = Inbox(database_url)

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREAT TABLE x (id integer)")

    failure = await Lifespan(inbox.asgi()).send("startup")
    assert failure["type"] == "lifespan.startup.failed"
    message = failure["message"]
    assert message.startswith("Onceward: @inbox.at_start tables failed: ")
    line = tables.__code__.co_firstlineno + 2
    assert message.endswith(f" (tests/integration/test_mounting.py:{line} in tables)")
    assert "CREAT" in message
    assert "\n" not in message


INVALID_SETTINGS = [
    ("DATABASE_URL", "mysql://ann:hunter2@db/x", "database_url starts with 'mysql://'"),
    ("DATABASE_URL", "sqlite:///x.db?mode=ro", "is not an option"),
    ("WORKERS", "many", "is not a whole number"),
    ("DEDUPE_WINDOW_DAYS", "1", "source 'stripe' can resend"),
    ("ADMIN_TOKENS", "ann", "must be name:token"),
]


def test_an_invalid_setting_is_an_error_when_the_app_is_made(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for (variable, value, fault), method in itertools.product(
        INVALID_SETTINGS, ("asgi", "admin_asgi")
    ):
        with subtests.test(f"{method}, {variable}={value}"), monkeypatch.context() as patch:
            patch.setenv(f"ONCEWARD_{variable}", value)
            inbox = Inbox()
            inbox.source("stripe", secrets=["whsec_example"])
            with pytest.raises(ConfigurationError, match=fault) as raised:
                getattr(inbox, method)()
            assert "hunter2" not in str(raised.value)


async def test_faults_that_later_lines_can_correct_wait_for_the_opening(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox(sqlite_url)
    app = inbox.asgi()

    @inbox.on("invoice.paid", source="strip")
    async def credit(event: Any) -> None: ...

    inbox.source("stripe", secrets=["whsec_example"])
    async with client(Starlette(routes=[Mount("/hooks", app)])) as http:
        response = await http.post("/hooks/webhooks/stripe")
    assert (response.status_code, response.json()["error"]) == (503, "unavailable")
    (line,) = [record for record in caplog.records if record.name == "onceward.http"]
    assert line.levelname == "ERROR"
    assert "there is no source 'strip'; did you mean 'stripe'?" in line.getMessage()
    assert vars(line)["path"] == "/hooks/webhooks/stripe"
    failure = await Lifespan(app).send("startup")
    assert failure["type"] == "lifespan.startup.failed"


async def test_a_mounted_app_names_the_paths_of_the_sender(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = make_inbox(sqlite_url)
    paths = ("/github", "/webhooks/githb", "/webhooks/nobody", "/webhooks/github", "/" + "x" * 999)
    wrong = {"x-hub-signature-256": f"sha256={'0' * 64}"}
    async with client(mounted(inbox)) as http:
        responses = [
            await http.post(f"/hooks{path}", content=b"{}", headers=wrong) for path in paths
        ]
        admin = await http.get("/ops/inbox/nothing/here")
    assert [response.status_code for response in responses] == [404, 404, 404, 401, 404]
    assert responses[0].json()["message"] == (
        "There is nothing at /hooks/github. Webhooks are received at POST /hooks/webhooks/<source>."
    )
    assert responses[1].json()["message"] == "No source has this name. Check the URL."
    assert len(responses[4].json()["message"]) < 200
    assert admin.json()["message"] == (
        "There is nothing at /ops/inbox/nothing/here. "
        "The admin API is described at GET /ops/inbox/openapi.json."
    )
    lines = [record.getMessage() for record in caplog.records if record.name == "onceward.http"]
    assert lines[0].startswith("/hooks/github: 404: There is nothing at /hooks/github.")
    for line, name in zip(lines[1:3], ("githb", "nobody"), strict=True):
        assert line == (
            f"/hooks/webhooks/{name}: 404: no source has this name; the sources are "
            "stripe, github, partner, gocardless, xero, trello, meta, lab (from 127.0.0.1)"
        )
    assert lines[3] == (
        "/hooks/webhooks/github: 401: no signature matched the secret; compare the secret with the "
        "provider's, and check that no middleware or proxy changes the body; "
        "`onceward verify github --app app.py` explains a captured request (from 127.0.0.1)"
    )
    assert inbox._mounted is not None
    await inbox._mounted.close()


async def test_a_second_process_on_the_same_sqlite_file_is_rejected(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_inbox(sqlite_url), make_inbox(sqlite_url)
    async with running(first.asgi()):
        failure = await Lifespan(second.asgi()).send("startup")
        assert failure["type"] == "lifespan.startup.failed"
        assert "Another process serves" in failure["message"]
        async with client(second.asgi()) as http:
            responses = [await http.get("/healthz") for _ in range(3)]
    assert [response.status_code for response in responses] == [503] * 3
    assert responses[0].headers["retry-after"] == "2"
    (line,) = [record for record in caplog.records if record.name == "onceward.http"]
    assert line.levelname == "ERROR"
    assert line.getMessage().startswith(
        "inbox unavailable; senders get 503 and retry: Another process serves "
        f"{sqlite_url.removeprefix('sqlite:///')}. "
    )


async def test_senders_get_503_while_the_database_is_down(
    postgres_cluster: Cluster, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = make_inbox(postgres_url)
    async with client(inbox.asgi()) as http:
        postgres_cluster.crash()
        response = await post_signed(http, "", "evt_1")
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        (line,) = [record.getMessage() for record in caplog.records if "503" in record.getMessage()]
        assert "\\n" not in line
        assert f"Check the database {redact_url(postgres_url)}, set by" in line
        assert line.endswith("ONCEWARD_DATABASE_URL, or Inbox(…) in the code.")
        postgres_cluster.start()
        assert (await post_signed(http, "", "evt_1")).status_code == 202
        assert inbox._mounted is not None
        await inbox._mounted.close()


async def test_a_mounted_inbox_opens_again_after_a_failed_preparation(database_url: str) -> None:
    inbox = make_inbox(database_url)
    failures = [OSError("not yet")]

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        assert await tx.fetch_value("SELECT 1") == 1
        if failures:
            raise failures.pop()

    async with client(inbox.asgi()) as http:
        statuses = [(await post_signed(http, "", "evt_1")).status_code for _ in range(2)]
    assert statuses == [503, 202]
    assert inbox._mounted is not None
    await inbox._mounted.close()


async def test_a_retired_handler_is_not_missed(database_url: str) -> None:
    missed: list[list[str]] = []
    for inbox in (make_inbox(database_url), Inbox(database_url), Inbox(database_url)):
        if len(missed) == 2:
            inbox.retire(*missed[1])
        service = inbox.service()
        await service.open()
        missed.append(service.unhandled)
        await service.close()
    before, without, retired = missed
    assert (before, retired) == ([], [])
    assert without


async def test_a_websocket_is_closed(sqlite_url: str) -> None:
    sent: asyncio.Queue[Any] = asyncio.Queue()

    async def connect() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/webhooks/partner", "headers": []}
    await make_inbox(sqlite_url).asgi()(scope, connect, sent.put)
    assert sent.get_nowait() == {"type": "websocket.close"}
