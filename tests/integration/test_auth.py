"""Admin tokens, the checks of --dev, allowed hosts, and the redaction of secrets."""

import hashlib
import logging
from collections.abc import Iterator

import httpx
import pytest

from onceward.errors import ConfigurationError
from tests.integration.conftest import Serve
from tests.integration.running import (
    JSON,
    SECRETS,
    STRIPE_SECRET,
    RunningInbox,
    digest,
    make_inbox,
    partner_webhook,
    request,
    stripe_webhook,
)

TOKEN = "token-of-ann-0123456789"
OTHER_TOKEN = "token-of-bob-0123456789"
EVENT = {"event_id": "evt_1", "event_type": "order.paid", "payload": {}}
ACT = {"actor": "ann", "reason": "because"}
LISTS = ("events", "jobs", "effects", "deliveries", "audit", "handlers", "sources")
GUARDED = [
    ("POST", "/events/ingest", EVENT),
    *(("GET", f"/admin/{kind}", None) for kind in LISTS),
    ("POST", "/admin/jobs/1/requeue", ACT),
]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """Run a service in production mode, with two token holders."""
    path = tmp_path_factory.mktemp("closed") / "onceward.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}, bob:{OTHER_TOKEN}")
        inbox = make_inbox(
            f"sqlite:///{path}",
            allowed_hosts=["inbox.example", "Two.Example"],
            trusted_proxies=["127.0.0.1"],
        )
        running = RunningInbox(inbox, dev=False)
    yield running
    running.close()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# Tokens.


def test_a_request_without_a_token_gets_401_and_changes_nothing(
    closed: RunningInbox, subtests: pytest.Subtests
) -> None:
    for method, path, body in GUARDED:
        with subtests.test(path):
            before = closed.rows()
            response = closed.http.request(method, path, json=body)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"] == "unauthorized"
            assert closed.rows() == before


@pytest.mark.parametrize(("path", "status"), [("/events/ingest", 401), ("/webhooks/unknown", 404)])
def test_a_sender_who_may_not_post_is_refused_before_the_body(
    closed: RunningInbox, path: str, status: int
) -> None:
    with closed.connect() as connection:
        head = request(path, headers=JSON | {"content-length": "9"})
        assert connection.send(head).read_response().status == status


AUTHORIZATIONS = {
    "wrong": b"Bearer token-of-ann-9876543210",
    "too short": b"Bearer token-of-ann-012345678",
    "too long": f"Bearer {TOKEN}0".encode(),
    "empty": b"Bearer ",
    "no value": b"",
    "only the scheme": b"Bearer",
    "another scheme": f"Basic {TOKEN}".encode(),
    "no scheme": TOKEN.encode(),
    "with the name": f"Bearer ann:{TOKEN}".encode(),
    "not ASCII": b"Bearer \xff\xfe\xc3\xa9",
    "its hash": f"Bearer {hashlib.sha256(TOKEN.encode()).hexdigest()}".encode(),
    "the hash's bytes": b"Bearer " + hashlib.sha256(b"x").digest().replace(b"\n", b""),
    "another case": f"Bearer {TOKEN.upper()}".encode(),
}


def test_a_wrong_authorization_gets_401(closed: RunningInbox, subtests: pytest.Subtests) -> None:
    for number, (name, authorization) in enumerate(AUTHORIZATIONS.items()):
        with subtests.test(name):
            client = f"x-forwarded-for: 203.0.113.{number}\r\n".encode()  # each has its own limit
            with closed.connect() as connection:
                head = b"GET /admin/events HTTP/1.1\r\nhost: x\r\n" + client + b"authorization: "
                response = connection.send(head + authorization + b"\r\n\r\n").read_response()
            assert response.status in (401, 400)  # the parser rejects control characters
            assert response.status == 401 or not authorization.isascii()


def test_two_tokens_in_one_request_are_rejected(closed: RunningInbox) -> None:
    lines = f"authorization: Bearer {TOKEN}\r\nauthorization: Bearer nonsense\r\n".encode()
    with closed.connect() as connection:
        assert (
            connection.send(request("/admin/events", method="GET", lines=lines))
            .read_response()
            .status
            == 400
        )


@pytest.mark.parametrize("token", [TOKEN, OTHER_TOKEN])
def test_a_token_is_accepted_on_any_host(closed: RunningInbox, token: str) -> None:
    headers = bearer(token) | {"host": "a.public.name"}
    for method, path, body in GUARDED[:-1]:
        assert closed.http.request(method, path, json=body, headers=headers).is_success
    assert closed.http.get(
        "/admin/events", headers={"authorization": f"bearer  {token}"}
    ).is_success


def test_the_audit_entry_names_the_token_holder(closed: RunningInbox) -> None:
    closed.http.post(
        "/events/ingest",
        json=EVENT | {"event_id": "audit", "event_type": "order.broken"},
        headers=bearer(TOKEN),
    )
    closed.http.headers.update(bearer(OTHER_TOKEN))
    try:
        job = closed.settled_job("audit")["id"]
        response = closed.http.post(f"/admin/jobs/{job}/requeue", json=ACT)
        assert response.json()["audit"]["authenticated_as"] == "bob"
        assert response.json()["audit"]["actor"] == "ann"
    finally:
        del closed.http.headers["authorization"]


INVALID_TOKENS = [
    "ann",
    TOKEN,
    f"ann:,bob:{TOKEN}",
    f":{TOKEN}",
    "ann:short",
    f"{TOKEN}:ann",
    f"ann:{TOKEN},ann:{OTHER_TOKEN}",
    f"{TOKEN}:x, {TOKEN}:{OTHER_TOKEN}",
    f"{TOKEN}:{OTHER_TOKEN},{TOKEN}:{OTHER_TOKEN}",
]


def test_invalid_tokens_prevent_the_start_and_are_not_shown(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for tokens in INVALID_TOKENS:
        with subtests.test(tokens):
            monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", tokens)
            with pytest.raises(ConfigurationError) as caught:
                make_inbox(sqlite_url).service()
            assert "ONCEWARD_ADMIN_TOKENS: " in str(caught.value)
            assert TOKEN not in str(caught.value)
            assert OTHER_TOKEN not in str(caught.value)


def test_a_token_may_contain_any_characters(
    sqlite_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "ключ-от-админки-äöü"
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{token}")
    service = serve(sqlite_url, dev=False)
    headers = {b"authorization": f"Bearer {token}".encode()}
    assert service.http.get("/admin/events", headers=headers).status_code == 200


def test_the_first_start_creates_a_token_and_stores_only_its_hash(
    database_url: str, serve: Serve
) -> None:
    first = serve(database_url, dev=False)
    assert first.token is not None
    assert len(first.token) >= 32
    assert first.http.get("/admin/events", headers=bearer(first.token)).status_code == 200
    ((name, sha256),) = first.raw_db.rows("SELECT name, sha256 FROM onceward.tokens")
    assert name == "admin"
    assert bytes(sha256) == hashlib.sha256(first.token.encode()).digest()
    first.close()
    second = serve(database_url, dev=False)
    assert second.token is None
    assert second.http.get("/admin/events", headers=bearer(first.token)).status_code == 200
    assert second.http.get("/admin/events").status_code == 401


async def test_two_concurrent_first_starts_share_one_token(postgres_url: str) -> None:
    services = [make_inbox(postgres_url).service() for _ in range(2)]
    for service in services:
        await service.open()
    try:
        (token,) = filter(None, [await service.create_first_token() for service in services])
        for service in services:
            transport = httpx.ASGITransport(service.app())
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                assert (await client.get("/admin/events", headers=bearer(token))).is_success
    finally:
        for service in services:
            await service.close()


def test_no_token_is_created_in_dev_or_with_configured_tokens(
    sqlite_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serve(sqlite_url, dev=True)
    assert first.token is None
    first.close()
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
    second = serve(sqlite_url, dev=False)
    assert second.token is None
    assert second.raw_db.count("onceward.tokens") == 0


def test_configured_tokens_replace_the_created_one(
    sqlite_url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serve(sqlite_url, dev=False)
    assert first.token is not None
    first.close()
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
    second = serve(sqlite_url, dev=False)
    assert second.http.get("/admin/events", headers=bearer(first.token)).status_code == 401
    assert second.http.get("/admin/events", headers=bearer(TOKEN)).status_code == 200


# Dev mode.

SAME_SITE = [
    {},
    {"host": "localhost"},
    {"host": "LOCALHOST:3000"},
    {"host": "127.0.0.1:1"},
    {"host": "127.0.0.53"},
    {"host": "[::1]:3000"},
    {"host": "localhost:3000", "origin": "http://localhost:3000"},
    {"host": "localhost:3000", "origin": "http://localhost:3000", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
]
FOREIGN = [
    {"host": "evil.example"},
    {"host": "evil.example:3000"},
    {"host": "localhost.evil.example"},
    {"host": "127.0.0.1.nip.io"},
    {"host": "127.0.0.1.evil.example:3000"},
    {"host": "localhost."},
    {"host": "0.0.0.0"},  # noqa: S104 - browsers route this name to the local machine
    {"host": "[::]"},
    {"host": "[::1"},
    {"host": "[::1].evil.example"},
    {"host": "10.0.0.1"},
    {"host": "evil.example@localhost"},
    {"host": "localhost@evil.example"},
    {"host": "localhost/evil.example"},
    {"host": "localhost#evil.example"},
    {"host": "localhost, evil.example"},
    {"host": "2130706433"},
    {"host": "inbox.example"},
    {"host": ""},
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://localhost.evil.example"},
    {"host": "localhost:3000", "origin": "http://localhost:3001"},
    {"host": "localhost:3000", "origin": "http://127.0.0.1:3000"},
    {"host": "localhost:3000", "origin": "http://localhost:3000@evil.example"},
    {"host": "localhost:3000", "origin": "http://[::1"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "something-new"},
    {"host": "localhost:3000", "origin": "http://localhost:3000", "sec-fetch-site": "cross-site"},
]


def label(headers: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in headers.items()) or "defaults"


def test_dev_is_open_to_this_machine(shared: RunningInbox, subtests: pytest.Subtests) -> None:
    for headers in SAME_SITE:
        with subtests.test(label(headers)):
            for method, path, body in GUARDED[:-1]:
                assert shared.http.request(method, path, json=body, headers=headers).is_success


def test_dev_rejects_other_hosts_and_origins(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for headers in FOREIGN:
        with subtests.test(label(headers)):
            before = shared.rows()
            for method, path, body in GUARDED:
                response = shared.http.request(method, path, json=body, headers=headers)
                assert response.status_code in (400, 403)  # some are not hosts at all
                assert response.json()["error"] in ("foreign_host", "foreign_origin", "malformed")
            assert shared.rows() == before


PROXY_HEADERS = [
    *("forwarded", "via", "x-real-ip", "cf-connecting-ip", "true-client-ip", "cdn-loop"),
    *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port"),
    *("x-forwarded-server", "X-Forwarded-Anything"),
]


def test_dev_rejects_requests_through_a_proxy(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for name in PROXY_HEADERS:
        with subtests.test(name):
            for method, path, body in GUARDED:
                response = shared.http.request(
                    method, path, json=body, headers={name: "203.0.113.7"}
                )
                assert (response.status_code, response.json()["error"]) == (403, "forwarded")


def test_dev_has_an_index(shared: RunningInbox, closed: RunningInbox) -> None:
    index = shared.http.get("/").json()
    assert (index["post"], "/admin/jobs" in index["look"]) == ("/events/ingest", True)
    assert closed.http.get("/").status_code == 404
    # A sender would read a 2xx as a receipt.
    assert shared.http.post("/", json=EVENT).status_code == 405


def test_dev_requires_exactly_one_host_header(shared: RunningInbox) -> None:
    with shared.connect() as connection:
        lines = b"host: localhost\r\n"
        assert (
            connection.send(request("/admin/events", method="GET", lines=lines))
            .read_response()
            .status
            == 400
        )
    with shared.connect() as connection:
        assert connection.send(b"GET /admin/events HTTP/1.0\r\n\r\n").read_response().status == 403


OTHER_TYPES = [
    "text/plain",
    "text/plain; application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonp",
    "application/json, text/plain",
    "",
]


def test_only_a_json_content_type_is_accepted(
    shared: RunningInbox, subtests: pytest.Subtests
) -> None:
    for kind in OTHER_TYPES:
        with subtests.test(kind):
            before = shared.rows()
            for path, body in (("/events/ingest", EVENT), ("/admin/jobs/1/requeue", ACT)):
                content = httpx.Request("POST", "http://x", json=body).content
                response = shared.http.post(path, content=content, headers={"content-type": kind})
                assert response.status_code == 415
            assert shared.rows() == before


def test_dev_still_verifies_signatures(shared: RunningInbox) -> None:
    response = shared.http.post("/webhooks/stripe", json={"id": "evt_1", "type": "x"})
    assert response.status_code == 401


def test_dev_works_over_ipv6(sqlite_url: str, serve: Serve) -> None:
    service = serve(sqlite_url, host="::1")
    assert service.post("evt_1").status_code == 202
    assert service.http.get("/admin/events", headers={"host": "[::2]"}).status_code == 403


# Hosts.


def test_a_signed_webhook_may_have_any_host_and_origin(closed: RunningInbox) -> None:
    for number, headers in enumerate(({"host": "x.tunnel.example"}, {"origin": "http://x"})):
        sent = stripe_webhook(f"host-{number}")
        response = closed.http.post(
            "/webhooks/stripe", content=sent.body, headers=sent.headers | headers
        )
        assert response.status_code == 202


HOSTS = [
    ("localhost", 202),
    ("[::1]:8080", 202),
    ("inbox.example", 202),
    ("INBOX.example:443", 202),
    ("two.example", 202),
    ("evil.example", 403),
    ("inbox.example.evil.example", 403),
    ("", 403),
]


def test_an_unsigned_source_accepts_only_allowed_hosts(
    closed: RunningInbox, subtests: pytest.Subtests
) -> None:
    for host, status in HOSTS:
        with subtests.test(host):
            headers = JSON | {"host": host, "x-event-id": f"unsigned-{host}"}
            before = closed.rows()
            response = closed.http.post("/webhooks/lab", content=b"{}", headers=headers)
            assert response.status_code == status
            assert (closed.rows() == before) is (status == 403)


def test_an_unsigned_source_rejects_pages_of_other_sites(closed: RunningInbox) -> None:
    before = closed.rows()
    for origin in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        headers = {"content-type": "text/plain", "x-event-id": "page", **origin}
        response = closed.http.post("/webhooks/lab", content=b"{}", headers=headers)
        assert response.status_code == 403
    assert closed.rows() == before


# Redaction.


def test_secrets_and_payloads_never_appear_in_logs_responses_or_lists(
    sqlite_url: str,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "onceward")
    monkeypatch.setenv("ONCEWARD_ADMIN_TOKENS", f"ann:{TOKEN}")
    service = serve(sqlite_url, dev=False)
    service.http.headers.update(bearer(TOKEN))
    private = "a-private-thing"
    signature = digest(STRIPE_SECRET, b"0.{}")
    responses = [
        service.post("evt_1", "order.paid", payload={"name": private}),
        service.post("evt_2", "order.broken", payload={"name": private}),
        service.send(stripe_webhook("evt_3", name=private)),
        service.send(stripe_webhook("evt_4", secret="whsec_not_the_one", name=private)),
        service.send(
            partner_webhook("evt_5", b'{"type":"order.paid","name":"a-private-thing","n":NaN}')
        ),
        service.http.post("/webhooks/stripe", headers={"stripe-signature": f"t=0,v1={signature}"}),
        service.http.post("/events/ingest", content=f'{{"event_id": "{private}'.encode()),
    ]
    for event_id in ("evt_1", "evt_2", "evt_3", "evt_5"):
        service.settled_job(event_id)
    responses += [service.http.get(f"/admin/{kind}") for kind in LISTS]
    seen = caplog.text + "".join(response.text for response in responses)
    assert "no signature matched any of 2 secrets" in seen
    for hidden in (*SECRETS, TOKEN, private, signature):
        assert hidden not in seen
