"""The access log: one line for each request, on every way into the service."""

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from onceward.http.access_log import AccessLog
from onceward.http.responses import Receive, Scope, Send
from onceward.runtime.clock import SystemClock
from onceward.runtime.log_fields import FIELDS
from support.processes import eventually
from tests.integration.conftest import Serve
from tests.integration.running import (
    SECRETS,
    RunningInbox,
    make_inbox,
    partner_webhook,
    request,
    stripe_webhook,
)

pytestmark = pytest.mark.every_transport

Lines = Callable[[int], list[logging.LogRecord]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Wait for a number of access lines, and return them."""
    caplog.set_level(logging.INFO, "onceward")

    def wait(count: int) -> list[logging.LogRecord]:
        def found() -> list[logging.LogRecord]:
            return [record for record in caplog.records if record.name == "onceward.access"]

        eventually(lambda: len(found()) >= count, f"{count} lines are logged")
        return found()

    return wait


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name in FIELDS}


def test_every_request_has_one_line(database_url: str, serve: Serve, lines: Lines) -> None:
    service = serve(database_url, access_log=True)
    responses = [
        service.send(stripe_webhook("evt_1"), "/webhooks/stripe?token=hunter2"),
        service.send(stripe_webhook("evt_1")),
        service.send(stripe_webhook("evt_1", extra="another body")),
        service.http.post("/webhooks/stripe", content=b"{}"),
        service.http.post("/webhooks/nobody", content=b"{}"),
        service.post("evt_2"),
        service.http.get("/admin/jobs?limit=1"),
        service.http.get("/healthz"),
    ]
    records = lines(len(responses))
    assert len(records) == len(responses)
    for record, response in zip(records, responses, strict=True):
        fields = fields_of(record)
        assert (record.levelname, fields["client"]) == ("INFO", "127.0.0.1")
        assert (fields["status"], fields["bytes"]) == (
            response.status_code,
            len(response.content),
        )
        assert 0 <= fields["milliseconds"] < 10_000
        start = f"{fields['method']} {fields['path']} {fields['status']} in "
        assert record.getMessage().startswith(start)
    shown = [(fields.get("source"), fields.get("outcome")) for fields in map(fields_of, records)]
    assert shown == [
        ("stripe", "recorded"),
        ("stripe", "duplicate"),
        ("stripe", "conflict"),
        ("stripe", "signature_rejected"),
        ("nobody", "unknown_source"),
        ("ingest", "recorded"),
        (None, None),
        (None, None),
    ]
    text = " ".join(f"{record.getMessage()} {fields_of(record)}" for record in records)
    assert "hunter2" not in text
    assert "in_1" not in text
    assert not [secret for secret in SECRETS if secret in text]


def test_without_the_setting_nothing_is_logged_or_wrapped(
    sqlite_url: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onceward")
    service = serve(sqlite_url)
    assert service.post("evt_1").status_code == 202
    assert [record for record in caplog.records if record.name == "onceward.access"] == []
    assert type(service.service.app()).__name__ == "RootApp"
    assert type(service.service.receive_app()).__name__ == "ReceiveApp"


def test_a_sender_that_disconnects_has_a_line_without_a_status(
    sqlite_url: str, lines: Lines
) -> None:
    running = RunningInbox(make_inbox(sqlite_url, access_log=True), dev=True)
    try:
        with running.connect() as connection:
            whole = request("/webhooks/lab", b"x" * 100)
            connection.send(whole[:-50])
        (record,) = lines(1)
    finally:
        running.close()
    assert fields_of(record)["outcome"] == "disconnected"
    assert "status" not in fields_of(record)
    assert record.getMessage().startswith("POST /webhooks/lab no response in ")


async def test_mounted_apps_log_the_path_of_the_sender(
    sqlite_url: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", "ann:a-long-random-token")
    inbox = make_inbox(sqlite_url, access_log=True)
    app = Starlette(routes=[Mount("/inbox", inbox.asgi()), Mount("/operators", inbox.admin_asgi())])
    webhook = partner_webhook("evt_1")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as http:
        await http.post("/inbox/webhooks/partner", content=webhook.body, headers=webhook.headers)
        await http.get("/operators/jobs")
    await inbox._mount().close()
    received, listed = lines(2)
    assert received.getMessage().startswith("POST /inbox/webhooks/partner 202 in ")
    assert fields_of(received)["outcome"] == "recorded"
    assert listed.getMessage().startswith("GET /operators/jobs 401 in ")
    assert "outcome" not in fields_of(listed)  # only webhooks have one


def test_control_characters_of_a_path_are_escaped(sqlite_url: str, lines: Lines) -> None:
    running = RunningInbox(make_inbox(sqlite_url, access_log=True), dev=True)
    try:
        running.http.get("/%0d%0aFAKE%1b[31m")
        (record,) = lines(1)
    finally:
        running.close()
    assert record.getMessage().isprintable()
    assert all(str(value).isprintable() for value in fields_of(record).values())


async def logged_call(*parts: bytes, error: Exception | None = None) -> None:
    """Log a webhook to an application that sends these parts of a body, and then fails."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        if parts:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if error is not None:
            raise error

    async def receive() -> Any:
        raise AssertionError("nothing is received")

    async def send(_message: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/webhooks/lab"}
    await AccessLog(app, SystemClock())(scope, receive, send)


async def test_all_parts_of_a_response_are_counted(lines: Lines) -> None:
    await logged_call(b"abc", b"", b"defg")
    (record,) = lines(1)
    assert fields_of(record)["bytes"] == 7


async def test_a_request_that_fails_has_a_line(lines: Lines) -> None:
    with pytest.raises(OSError, match="broken"):
        await logged_call(error=OSError("broken"))
    (record,) = lines(1)
    assert record.getMessage().startswith("POST /webhooks/lab no response in ")


async def test_the_outcomes_of_a_batch_are_listed_once_each(lines: Lines) -> None:
    await logged_call(
        b'{"accepted":true,"events":[{"duplicate":true},{},{"duplicate":true},{"conflict":true}]}'
    )
    (record,) = lines(1)
    assert fields_of(record)["outcome"] == "duplicate,recorded,conflict"


@pytest.mark.parametrize("path", ["/über/webhooks/nobody", "/webhooks/nobody"])
async def test_a_mount_that_strips_its_prefix_logs_the_same_path(
    sqlite_url: str, lines: Lines, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    inbox = make_inbox(sqlite_url, access_log=True)
    transport = httpx.ASGITransport(inbox.asgi(), root_path="/über")
    async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as http:
        await http.post(path)
    (record,) = lines(1)
    assert fields_of(record)["path"] == "/%C3%BCber/webhooks/nobody"
    (refused,) = [record for record in caplog.records if record.name == "onceward.http"]
    assert fields_of(refused)["path"] == "/über/webhooks/nobody"
    assert inbox._mounted is not None
    await inbox._mounted.close()
