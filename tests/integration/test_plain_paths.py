"""Paths are served in their plain form only, so that a proxy's rules cannot be evaded."""

import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.integration.conftest import Serve
from tests.integration.running import RunningInbox, make_inbox, partner_webhook, request

pytestmark = pytest.mark.every_transport

TOKEN = "token-of-ann-0123456789"
BEARER = {"authorization": f"Bearer {TOKEN}"}
EVENT = json.dumps({"event_id": "evt_1", "event_type": "order.paid", "payload": {}}).encode()
JSON = {"content-type": "application/json"}

ADMIN = [
    *("/%61dmin/jobs", "/admin/%6aobs", "/admin/%6Aobs", "/admin%2fjobs", "/admin%2Fjobs"),
    *("/admin%2e/jobs", "/%2fadmin/jobs", "//admin/jobs", "/admin//jobs", "///admin/jobs"),
    *("/x/../admin/jobs", "/x/%2e%2e/admin/jobs", "/./admin/jobs", "/admin/./jobs"),
    *("/admin/x/../jobs", "/admin/jobs/.", "/admin/jobs/..", "/admin/jobs/../jobs"),
    *("/admin;x/jobs", "/admin/jobs;x", "/admin/jobs%3bx", "/admin/jobs/", "/admin/jobs%2f"),
    *("/ADMIN/jobs", "/Admin/jobs", "/admin/JOBS", "/admin/jobs%00", "/admin/jobs%00.css"),
    *("/admin%00/jobs", "/admin\\jobs", "/admin%5cjobs", "/\\admin/jobs"),
    *("/%2561dmin/jobs", "/%61%64%6d%69%6e/jobs", "/adm%69n/jobs", "/admin%20/jobs"),
    *("/openapi%2ejson", "/%6fpenapi.json", "//openapi.json", "/openapi.json/", "/openapi.json;x"),
    *("/healthz/../admin/jobs", "/webhooks/../admin/jobs", "/webhooks/..%2fadmin/jobs"),
]
RECEIVING = [
    *("/%65vents/ingest", "/events%2fingest", "/events/%69ngest", "//events/ingest"),
    *("/events//ingest", "/events/./ingest", "/x/../events/ingest", "/events/ingest;x"),
    *("/events/ingest/", "/events\\ingest", "/EVENTS/ingest", "/events/ingest%00"),
    *("/webhooks/%6cab", "/%77ebhooks/lab", "/webhooks%2flab", "//webhooks/lab"),
    *("/webhooks/x/../lab", "/webhooks/./lab", "/webhooks/lab;x", "/webhooks/Lab"),
    *("/webhooks/lab%00", "/webhooks/lab/", "/webhooks//lab", "/webhooks\\lab"),
]


@pytest.fixture
def closed(sqlite_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> RunningInbox:
    """Run a service in production mode."""
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
    return serve(sqlite_url, dev=False)


def status(service: RunningInbox, method: str, target: str, body: bytes = b"") -> int:
    """Return the status of a request whose target is sent as it is."""
    headers = BEARER | JSON | {"x-event-id": "evt_1"}
    with service.connect() as connection:
        connection.send(request(target, body, method=method, headers=headers))
        return connection.read_response().status


def test_only_the_plain_path_is_served(closed: RunningInbox) -> None:
    assert status(closed, "GET", "/admin/jobs") == 200
    assert status(closed, "GET", "/admin/jobs?limit=1&after=%31") == 200
    assert {target: status(closed, "GET", target) for target in ADMIN} == dict.fromkeys(ADMIN, 404)
    before = closed.rows()
    received = {target: status(closed, "POST", target, EVENT) for target in RECEIVING}
    assert received == dict.fromkeys(RECEIVING, 404)
    assert closed.rows() == before
    for target in ("/events/ingest", "/webhooks/lab", "/webhooks/lab?x=%61/../b"):
        assert status(closed, "POST", target, EVENT) == 202


def test_a_target_with_a_host_is_refused(closed: RunningInbox, subtests: pytest.Subtests) -> None:
    for target in ("http://127.0.0.1/admin/jobs", "http:/admin/jobs", "admin/jobs"):
        with subtests.test(target):
            assert status(closed, "GET", target) in (400, 404)  # of our server, of uvicorn


def test_the_response_shows_the_path_as_sent(closed: RunningInbox) -> None:
    response = closed.http.get("/%61dmin/jobs", headers=BEARER)
    assert response.json() == {
        "error": "not_found",
        "message": "There is nothing at /%61dmin/jobs. Send a plain path, without "
        "percent-encoding, // or dots.",
    }


# Mounted in another application.


async def call(app: Any, path: str, raw_path: bytes | None, **more: Any) -> int:
    """Return the status of a GET as another server passes it on."""
    headers = [(b"host", b"app.example"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": headers,
        **({} if raw_path is None else {"raw_path": raw_path}),
        **more,
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    result: int = sent[0]["status"]
    return result


MOUNTED: list[tuple[str, bytes | None, int]] = [
    ("/ops/inbox/jobs", b"/ops/inbox/jobs", 200),
    ("/ops/inbox/jobs", b"/ops/inbox/jobs?limit=%31", 200),  # some servers keep the query
    ("/ops/inbox/jobs", None, 200),
    ("/ops/inbox/jobs", b"/ops/inbox/%6aobs", 404),
    ("/ops/inbox/jobs", b"/%6fps/inbox/jobs", 404),
    ("/ops/inbox/jobs", b"/ops%2finbox/jobs", 404),
    ("/ops/inbox/jobs", b"//ops/inbox/jobs", 404),
    ("/ops/inbox/jobs", b"/x/../ops/inbox/jobs", 404),
    ("/ops/inbox/jobs", b"http://app.example/ops/inbox/jobs", 404),
    ("/ops/inbox//jobs", None, 404),
    ("/ops/inbox/x/../jobs", None, 404),
    ("/ops/inbox/openapi.json", b"/ops/inbox/openapi%2Ejson", 404),
    ("/ops/böx/jobs", b"/ops/b%C3%B6x/jobs", 200),  # there is no plainer form
    ("/ops/böx/jobs", b"/ops/b%c3%b6x/jobs", 200),
]


async def test_a_mounted_admin_app_serves_the_plain_path_only(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
    inbox = make_inbox(sqlite_url)
    admin = inbox.admin_asgi()
    app = Starlette(routes=[Mount("/ops/inbox", admin), Mount("/ops/böx", admin)])
    for path, raw_path, expected in MOUNTED:
        with subtests.test(f"{path}, {raw_path!r}"):
            assert await call(app, path, raw_path) == expected
            if raw_path is not None:
                root, _, rest = path.rpartition("/")
                stripped = await call(admin, f"/{rest}", raw_path, root_path=root)
                assert stripped == expected
    await inbox._mount().close()


@pytest.mark.parametrize(("source", "expected"), [("lab", [202, 404, 404]), ("partner", [202] * 3)])
async def test_a_mounted_receiver_takes_other_forms_from_signed_senders_only(
    sqlite_url: str, source: str, expected: list[int]
) -> None:
    inbox = make_inbox(sqlite_url)
    app = Starlette(routes=[Mount("/my hooks", inbox.asgi())])
    webhook = partner_webhook("evt_1")
    headers = webhook.headers | {"host": "localhost"}
    paths = [
        f"/my%20hooks/webhooks/{source}",
        f"/my%20hooks/webhooks/%{ord(source[0]):x}{source[1:]}",
        f"/m%79%20hooks/webhooks/{source}",
    ]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://app.example"
    ) as http:
        responses = [await http.post(path, content=webhook.body, headers=headers) for path in paths]
    await inbox._mount().close()
    assert [response.status_code for response in responses] == expected
