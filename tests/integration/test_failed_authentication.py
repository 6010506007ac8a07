"""Wrong admin tokens are logged, counted and slowed down, by client."""

import logging
import time
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from onceward.http import throttle
from onceward.http.throttle import FAILURES_BEFORE_BLOCK
from support.processes import eventually
from tests.integration.conftest import Serve
from tests.integration.running import RunningInbox, make_inbox

TOKEN = "token-of-ann-0123456789"
EVENT = {"event_id": "evt_1", "event_type": "order.paid", "payload": {}}
ENDPOINTS = [
    ("GET", "/admin/events"),
    ("GET", "/openapi.json"),
    ("POST", "/admin/jobs/1/requeue"),
    ("POST", "/events/ingest"),
]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")


@pytest.fixture
def long_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first block outlast the test, on a slow machine too."""
    monkeypatch.setattr(throttle, "FIRST_BLOCK_SECONDS", 30.0)


@pytest.fixture
def service(sqlite_url: str, serve: Serve) -> RunningInbox:
    """Run a service in production mode, behind a proxy on this machine."""
    return serve(sqlite_url, dev=False, trusted_proxies=["127.0.0.1"])


def headers(token: str | None, client: str) -> dict[str, str]:
    bearer = {} if token is None else {"authorization": f"Bearer {token}".strip()}
    return bearer | {"x-forwarded-for": f"192.0.2.1, {client}"}


def ask(
    service: RunningInbox, token: str | None, client: str, method: str = "GET", path: str = ""
) -> httpx.Response:
    body = EVENT if method == "POST" else None
    return service.http.request(
        method, path or "/admin/events", json=body, headers=headers(token, client)
    )


def guess(
    service: RunningInbox, client: str, count: int = FAILURES_BEFORE_BLOCK, **more: str
) -> None:
    for number in range(count):
        response = ask(service, f"guess-{number}", client, **more)
        assert (response.status_code, response.json()["error"]) == (401, "unauthorized")


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "onceward.http"]


@pytest.mark.usefixtures("long_block")
def test_a_client_that_guesses_is_refused_and_others_are_not(
    service: RunningInbox, subtests: pytest.Subtests
) -> None:
    for number, (method, path) in enumerate(ENDPOINTS):
        client, other = f"203.0.113.{number}", f"203.0.113.10{number}"
        with subtests.test(f"{method} {path}"):
            guess(service, client, method=method, path=path)
            for other_method, other_path in ENDPOINTS:
                for token in ("another guess", None, TOKEN):  # the token is not looked at
                    response = ask(service, token, client, other_method, other_path)
                    error = response.json()["error"]
                    assert (response.status_code, error) == (429, "too_many_failures")
                    assert 20 <= int(response.headers["retry-after"]) <= 30
            started = time.monotonic()
            assert ask(service, TOKEN, other).status_code == 200
            assert ask(service, "guess", other).status_code == 401
            assert time.monotonic() - started < 5


def test_a_correct_token_works_again_when_the_block_is_over(service: RunningInbox) -> None:
    guess(service, "203.0.113.7")
    assert ask(service, TOKEN, "203.0.113.7").status_code == 429
    time.sleep(1.05)  # the first block
    assert ask(service, TOKEN, "203.0.113.7").status_code == 200
    assert ask(service, "guess again", "203.0.113.7").status_code == 401
    assert ask(service, TOKEN, "203.0.113.7").headers["retry-after"] == "2"


@pytest.mark.usefixtures("long_block")
def test_addresses_of_one_ipv6_network_are_one_client(service: RunningInbox) -> None:
    for number in range(FAILURES_BEFORE_BLOCK):
        ask(service, f"guess-{number}", f"2001:db8:1:2::{number}")
    assert ask(service, TOKEN, "2001:db8:1:2:ffff::").status_code == 429
    assert ask(service, TOKEN, "2001:db8:1:3::").status_code == 200


def test_the_same_wrong_token_is_slowed_but_blocks_no_other_token(service: RunningInbox) -> None:
    responses = [ask(service, "outdated", "203.0.113.7") for _ in range(FAILURES_BEFORE_BLOCK + 2)]
    assert [response.status_code for response in responses] == [401] * FAILURES_BEFORE_BLOCK + [
        429
    ] * 2
    assert responses[-1].headers["retry-after"] == "2"
    assert "was wrong before" in responses[-1].json()["message"]
    assert ask(service, TOKEN, "203.0.113.7").status_code == 200


def test_requests_without_a_token_are_no_guesses(service: RunningInbox) -> None:
    for token in (None, ""):
        for _ in range(2 * FAILURES_BEFORE_BLOCK):
            assert ask(service, token, "203.0.113.7").status_code == 401
    assert ask(service, TOKEN, "203.0.113.7").status_code == 200


@pytest.mark.usefixtures("long_block")
def test_a_forged_header_does_not_help(sqlite_url: str, serve: Serve) -> None:
    service = serve(sqlite_url, dev=False)  # 127.0.0.1 is no trusted proxy
    for number in range(FAILURES_BEFORE_BLOCK):
        assert ask(service, f"guess-{number}", f"203.0.113.{number}").status_code == 401
    assert ask(service, TOKEN, "203.0.113.99").status_code == 429


@pytest.mark.usefixtures("long_block")
def test_failures_are_logged_with_the_client_and_without_the_token(
    service: RunningInbox, caplog: pytest.LogCaptureFixture
) -> None:
    ask(service, None, "203.0.113.6")
    time.sleep(1.05)  # a line is written once a second
    for number in range(100):
        ask(service, f"hunter2-{number}", "203.0.113.7", path=f"/admin/jobs/{number}")
    time.sleep(1.05)  # past the interval that the last line started
    ask(service, "hunter2-again", "203.0.113.7")
    missing, wrong, first, *_, last = records = lines(caplog)
    assert missing.getMessage() == "/admin/events: 401: no admin token from 203.0.113.6"
    assert wrong.getMessage() == (
        "/admin/jobs/0: 401: wrong admin token from 203.0.113.7 (1 so far)"
    )
    refused = "429: refused 203.0.113.7 after 5 wrong admin tokens"
    assert first.getMessage() == f"/admin/jobs/5: {refused}"
    assert last.getMessage().startswith(f"/admin/events: {refused} (")
    assert {vars(record)["client"] for record in records[1:]} == {"203.0.113.7"}
    assert sum(1 + vars(record).get("suppressed", 0) for record in records[2:]) == 96
    shown = [f"{record.getMessage()} {vars(record)}" for record in records]
    assert not [text for text in shown if "hunter2" in text]


def test_a_line_suggests_to_trust_a_proxy(
    sqlite_url: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(sqlite_url, dev=False)
    for number in range(FAILURES_BEFORE_BLOCK + 1):
        ask(service, f"guess-{number}", "203.0.113.7")
        time.sleep(1.05 * (number == FAILURES_BEFORE_BLOCK - 2))  # the next line is due
    assert lines(caplog)[-2].getMessage() == (
        "/admin/events: 401: wrong admin token from 127.0.0.1 (5 so far); all its requests get 429 "
        "for 1 s; if it is your proxy, add it to trusted_proxies (3 more since the last line)"
    )


@pytest.mark.usefixtures("long_block")
def test_a_burst_does_not_hide_the_suggestion(
    sqlite_url: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(sqlite_url, dev=False)
    for number in range(FAILURES_BEFORE_BLOCK + 5):
        ask(service, f"guess-{number}", "203.0.113.7")
    assert lines(caplog)[-1].getMessage() == (
        "/admin/events: 429: refused 127.0.0.1 after 5 wrong admin tokens; "
        "if it is your proxy, add it to trusted_proxies"
    )


@pytest.mark.usefixtures("long_block")
def test_failures_are_counted_in_the_list_of_rejections(database_url: str, serve: Serve) -> None:
    service = serve(database_url, dev=False, trusted_proxies=["127.0.0.1"])
    for number in range(20):
        ask(service, f"guess-{number}", "203.0.113.7")
    ask(service, None, "203.0.113.8", "POST", "/events/ingest")

    def counts() -> dict[Any, int]:
        page = ask(service, TOKEN, "203.0.113.9", path="/admin/rejections").json()
        totals: dict[Any, int] = {}
        for item in page["items"]:
            key = item["source"], item["cause"], item["check"]
            totals[key] = totals.get(key, 0) + item["count"]
        return totals

    expected = {
        ("ingest", "mismatch", "wrong admin token"): 5,
        ("ingest", "mismatch", "refused after wrong admin tokens"): 15,
        ("ingest", "missing", "no admin token"): 1,
    }
    eventually(lambda: counts() == expected, "every failure is counted")


@pytest.mark.usefixtures("long_block")
@pytest.mark.parametrize("peer", [("198.51.100.7", 1), ("", 0), ("testclient", 1), None])
async def test_mounted_apps_share_one_throttle(sqlite_url: str, peer: Any) -> None:
    inbox = make_inbox(sqlite_url)
    app = Starlette(routes=[Mount("/hooks", inbox.asgi()), Mount("/ops", inbox.admin_asgi())])
    transport = httpx.ASGITransport(app, client=peer)
    async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as http:
        for number in range(FAILURES_BEFORE_BLOCK):
            wrong = {"authorization": f"Bearer guess-{number}"}
            assert (await http.get("/ops/events", headers=wrong)).status_code == 401
        right = {"authorization": f"Bearer {TOKEN}"}
        response = await http.post("/hooks/events/ingest", json=EVENT, headers=right)
        assert response.status_code == 429
    other = httpx.ASGITransport(app, client=("198.51.100.8", 1))
    async with httpx.AsyncClient(transport=other, base_url="http://app.example") as http:
        assert (await http.get("/ops/events", headers=right)).status_code == 200
    await inbox._mount().close()
