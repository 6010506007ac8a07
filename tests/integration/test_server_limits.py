"""Requests that are too large, too slow or malformed: each gets a response and a close."""

import itertools
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest

from onceward.http.server import connection as server_connection
from onceward.http.server import context, limits
from support.processes import eventually
from tests.integration.running import (
    JSON,
    RunningInbox,
    make_inbox,
    partner_webhook,
    request,
)

BODY_LIMIT = 10_000
HEADER_LIMIT = 4_096
TIMEOUT_SECONDS = 0.5
CHUNKED = {"transfer-encoding": "chunked"}
FORGED = {"x-signature": "00"}
"""Without any signature, the body would not be read."""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """Run a service with small limits and a short timeout, except for the ledger."""
    inbox = make_inbox(
        f"sqlite:///{tmp_path_factory.mktemp('strict') / 'onceward.db'}",
        max_body_bytes=BODY_LIMIT,
        max_header_bytes=HEADER_LIMIT,
        max_headers=20,
        body_timeout_seconds=TIMEOUT_SECONDS,
        commit_timeout_seconds=10,
        max_pending_bytes=2 * BODY_LIMIT,
    )
    running = RunningInbox(inbox, dev=True)
    yield running
    running.close()


@pytest.fixture
def nothing_recorded(strict: RunningInbox) -> Iterator[RunningInbox]:
    """Check that the test adds no row."""
    with recording_nothing(strict):
        yield strict


@contextmanager
def recording_nothing(service: RunningInbox) -> Iterator[None]:
    before = service.rows()
    yield
    assert service.rows() == before


def headers_of(path: str, body_length: int) -> dict[str, str]:
    token = {"authorization": "Bearer none"} if path.startswith("/admin") else {}
    return JSON | FORGED | token | {"content-length": str(body_length), "x-event-id": "large"}


PATHS = ["/webhooks/partner", "/events/ingest", "/admin/jobs/1/requeue"]


# Too large.


def test_a_large_content_length_is_rejected_before_the_body(
    strict: RunningInbox, subtests: pytest.Subtests
) -> None:
    for path, length in itertools.product(PATHS, [BODY_LIMIT + 1, 10**12, 10**40]):
        case = subtests.test(f"{length} bytes to {path}")
        with case, recording_nothing(strict), strict.connect() as connection:
            connection.send(request(path, headers=headers_of(path, length)))
            response = connection.read_response()
            assert response.status in (413, 400)  # the parser rejects numbers beyond 64 bits
            assert response.status == 413 or length == 10**40
            assert connection.is_closed()


def test_endless_chunks_are_rejected_and_no_longer_read(
    strict: RunningInbox, subtests: pytest.Subtests
) -> None:
    for path in PATHS:
        with subtests.test(path), recording_nothing(strict):
            head = request(path, headers=headers_of(path, 0) | CHUNKED).replace(
                b"content-length: 0\r\n", b""
            )
            with strict.connect() as connection:
                connection.send(head)
                for _ in range(11):
                    connection.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
                assert connection.read_response().status == 413
                assert connection.is_closed()
            with strict.connect() as connection:
                connection.send(head)
                assert connection.send_until_closed(b"3e8\r\n" + b" " * 1000 + b"\r\n") < 50_000_000


def test_chunks_in_one_write_are_limited_too(nothing_recorded: RunningInbox) -> None:
    path, size = "/webhooks/partner", BODY_LIMIT + 1
    head = request(path, headers=headers_of(path, 0) | CHUNKED).replace(
        b"content-length: 0\r\n", b""
    )
    with nothing_recorded.connect() as connection:
        connection.send(head + b"%x\r\n" % size + b" " * size + b"\r\n0\r\n\r\n")
        assert connection.read_response().status == 413


def test_a_body_of_exactly_the_limit_is_accepted(strict: RunningInbox) -> None:
    body = b'{"type":"order.paid"}'.ljust(BODY_LIMIT)
    assert strict.send(partner_webhook("limit", body)).status_code == 202
    assert strict.payload("limit")[0] == body
    assert strict.send(partner_webhook("beyond", body + b" ")).status_code == 413


LARGE_HEADERS = {
    "one too long": f"x-long: {'x' * HEADER_LIMIT}\r\n".encode(),
    "too many": b"".join(f"x-{number}: 1\r\n".encode() for number in range(30)),
    "one repeated too often": b"x-same: 1\r\n" * 30,
    "too long in total": b"".join(f"x-{number}: {'x' * 500}\r\n".encode() for number in range(10)),
}


def test_large_headers_get_431(strict: RunningInbox, subtests: pytest.Subtests) -> None:
    for path, (name, lines) in itertools.product(
        [*PATHS, "/healthz", "/nowhere"], LARGE_HEADERS.items()
    ):
        case = subtests.test(f"{path}: {name}")
        with case, recording_nothing(strict), strict.connect() as connection:
            connection.send(request(path, headers=JSON, lines=lines))
            response = connection.read_response()
            if path == "/nowhere" and response.status == 404:
                pytest.fail("headers are checked before the path")
            assert response.status == 431
            assert connection.is_closed()


def test_a_long_target_gets_431(nothing_recorded: RunningInbox) -> None:
    for path in ("/admin/events?event_id=", "/webhooks/"):
        with nothing_recorded.connect() as connection:
            method = "GET" if "admin" in path else "POST"
            connection.send(request(path + "x" * HEADER_LIMIT, method=method))
            assert connection.read_response().status == 431


def test_an_endless_header_gets_431(nothing_recorded: RunningInbox) -> None:
    with nothing_recorded.connect() as connection:
        connection.send(b"POST /events/ingest HTTP/1.1\r\nx-long: ")
        for _ in range(5):
            connection.send(b"x" * 1000)
        assert connection.read_response().status == 431
        assert connection.is_closed()


def test_a_body_does_not_count_toward_the_next_header_block(strict: RunningInbox) -> None:
    sent = [partner_webhook(f"before-{n}", b"{}".ljust(HEADER_LIMIT + 1000)) for n in (1, 2)]
    data = b"".join(
        request("/webhooks/partner", webhook.body, headers=webhook.headers) for webhook in sent
    )
    with strict.connect() as connection:
        connection.send(data[: -HEADER_LIMIT - 1100])  # in the middle of the second header block
        time.sleep(0.05)
        connection.send(data[-HEADER_LIMIT - 1100 :])
        assert [connection.read_response().status for _ in sent] == [202, 202]


# Too slow.


def test_a_slow_body_times_out_without_delaying_others(nothing_recorded: RunningInbox) -> None:
    sent = partner_webhook("slow")
    with ExitStack() as stack:
        slow = [stack.enter_context(nothing_recorded.connect()) for _ in range(50)]
        for connection in slow:
            data = request("/webhooks/partner", sent.body, headers=sent.headers)
            connection.send(data[:-1])
        started = time.monotonic()
        for _ in range(20):
            assert nothing_recorded.http.get("/healthz").status_code == 200
        assert time.monotonic() - started < TIMEOUT_SECONDS
        for connection in slow:
            response = connection.read_response()
            assert (response.status, response.headers["connection"]) == (408, "close")
            assert connection.is_closed()
        assert TIMEOUT_SECONDS / 2 < time.monotonic() - started < TIMEOUT_SECONDS + 2


@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
def test_a_slow_header_block_times_out_despite_steady_bytes(
    nothing_recorded: RunningInbox, before: int
) -> None:
    with nothing_recorded.connect() as connection:
        for _ in range(before):
            connection.send(request("/healthz", method="GET"))
            assert connection.read_response().status == 200
        started = time.monotonic()
        for byte in b"POST /events":
            connection.send(bytes([byte]))
            time.sleep(TIMEOUT_SECONDS / 20)
        assert connection.read_response().status == 408
        assert connection.is_closed()
        assert TIMEOUT_SECONDS * 0.9 < time.monotonic() - started < TIMEOUT_SECONDS + 1


def test_a_silent_connection_times_out(strict: RunningInbox) -> None:
    with strict.connect() as connection:
        assert connection.read_response().status == 408
        assert connection.is_closed()


def test_line_breaks_between_requests_do_not_keep_a_connection_open(
    strict: RunningInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "KEEP_ALIVE_SECONDS", TIMEOUT_SECONDS)
    with strict.connect() as connection:
        connection.send(request("/healthz", method="GET"))
        assert connection.read_response().status == 200
        started = time.monotonic()
        connection.send_until_closed(b"\r\n", pause_seconds=0.05)
        assert time.monotonic() - started < TIMEOUT_SECONDS + 2


def test_a_body_that_continues_after_the_response_is_cut_off(
    nothing_recorded: RunningInbox,
) -> None:
    with nothing_recorded.connect() as connection:
        head = request("/nowhere", headers=CHUNKED).replace(b"content-length: 0\r\n", b"")
        connection.send(head + b"1\r\nx\r\n")
        assert connection.read_response().status == 404
        started = time.monotonic()
        connection.send_until_closed(b"1\r\nx\r\n", pause_seconds=0.02)
        assert time.monotonic() - started < TIMEOUT_SECONDS + 2


def test_an_active_connection_stays_open(strict: RunningInbox) -> None:
    with strict.connect() as connection:
        for number in range(4):
            sent = partner_webhook(f"kept-alive-{number}")
            connection.send(request("/webhooks/partner", sent.body, headers=sent.headers))
            assert connection.read_response().status == 202
            time.sleep(TIMEOUT_SECONDS / 2)
        time.sleep(TIMEOUT_SECONDS)
        connection.send(request("/healthz", method="GET"))
        assert connection.read_response().status == 200


def test_a_connection_stays_open_after_a_rejection(strict: RunningInbox) -> None:
    with strict.connect() as connection:
        connection.send(request("/webhooks/partner", b"{}", headers=JSON | FORGED))
        assert connection.read_response().status == 401
        time.sleep(TIMEOUT_SECONDS * 1.5)
        connection.send(request("/healthz", method="GET"))
        assert connection.read_response().status == 200


def test_an_idle_connection_is_closed(
    strict: RunningInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "KEEP_ALIVE_SECONDS", 0.4)
    with strict.connect() as connection:
        for number in range(4):
            sent = partner_webhook(f"idle-{number}")
            connection.send(request("/webhooks/partner", sent.body, headers=sent.headers))
            assert connection.read_response().status == 202
            time.sleep(0.2)
        started = time.monotonic()
        assert connection.is_closed()
        assert 0.1 < time.monotonic() - started < 1


@pytest.mark.parametrize(
    ("version", "connection_header"), [("1.1", "close"), ("1.0", "close"), ("1.0", "keep-alive")]
)
def test_the_last_request_gets_its_response_before_the_close(
    strict: RunningInbox, version: str, connection_header: str
) -> None:
    sent = partner_webhook(f"last-{version}-{connection_header}")
    headers = sent.headers | {"connection": connection_header}
    data = request("/webhooks/partner", sent.body, headers=headers)
    with strict.connect() as connection:
        connection.send(data.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        response = connection.read_response()
        assert (response.status, response.headers["connection"]) == (202, "close")
        assert connection.is_closed()


def test_an_escaped_target_reaches_its_source(strict: RunningInbox) -> None:
    sent = partner_webhook("escaped")
    with strict.connect() as connection:
        data = request("/webhooks/partn%65r?a=%41", sent.body, headers=sent.headers)
        assert connection.send(data).read_response().status == 202


def test_concurrent_bodies_share_one_memory_limit(nothing_recorded: RunningInbox) -> None:
    sent = partner_webhook("memory", b" " * 9_000)
    data = request("/webhooks/partner", sent.body, headers=sent.headers)
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(nothing_recorded.connect()) for _ in range(3))
        for connection in (first, second, third):
            connection.send(data[:-5000])
            time.sleep(0.05)
            connection.send(data[-5000:-10])
            time.sleep(0.05)
        response = third.read_response()
        assert (response.status, response.headers["retry-after"]) == (503, "2")
        assert json.loads(response.body)["error"] == "overloaded"
    time.sleep(0.1)
    with nothing_recorded.connect() as connection:  # the memory is free again
        connection.send(request("/events/ingest", headers=headers_of("", 9_000)) + b" " * 8_000)
        time.sleep(0.05)
        connection.send(b" " * 1_000)
        assert connection.read_response().status == 422


# Connections.


def test_this_machine_gets_in_while_all_connections_are_taken(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "is_loopback", "127.0.0.1".__eq__)  # 127.0.0.66 is remote
    monkeypatch.setattr(context, "LINE_INTERVAL_SECONDS", 0.0)
    running = RunningInbox(make_inbox(sqlite_url, max_connections=3), dev=True)

    def connect() -> socket.socket:
        address = running.host, running.port
        return socket.create_connection(address, timeout=10, source_address=("127.0.0.66", 0))

    with closing(running), ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect())
        with connect() as refused:
            assert refused.recv(1_000).startswith(b"HTTP/1.1 503 ")
        for path in ("/healthz", "/admin/jobs"):
            assert httpx.get(running.address + path).status_code == 200
        lines = [line for line in caplog.messages if line.startswith("connection")]
        assert lines == ["connection refused: max_connections (3) are open; 127.0.0.66 holds 3"]
        stack.close()

        def is_over() -> bool:
            httpx.get(f"{running.address}/healthz")
            over = "connections are accepted again; 1 were refused"
            return any(line.startswith(over) for line in caplog.messages)

        eventually(is_over, "the log says that it is over")


# Malformed.

MALFORMED = {
    "noise": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "another version": b"POST / HTTP/9.9\r\n\r\n",
    "bytes in the target": b"POST /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a host in the target": b"GET http://localhost/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a fragment in the target": b"GET /healthz#part HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "no path in the target": b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
    "no host in the header": b"GET /healthz HTTP/1.1\r\nhost: a b, c\r\n\r\n",
    "no version": b"GET /healthz\r\nhost: localhost\r\n\r\n",
    "two codings": request(
        "/events/ingest", headers={"transfer-encoding": "gzip, chunked"}
    ).replace(b"content-length: 0\r\n", b""),
    "chunks in HTTP/1.0": request("/events/ingest", headers=CHUNKED)
    .replace(b"content-length: 0\r\n", b"")
    .replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no host in the target": b"GET http:// HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "two lengths": request("/events/ingest", b"{}", lines=b"content-length: 3\r\n"),
    "length and chunks": request("/events/ingest", b"0\r\n\r\n", headers=CHUNKED),
    "a length that is not a number": request("/events/ingest", headers={"content-length": "many"}),
    "a negative length": request("/events/ingest", headers={"content-length": "-1"}),
    "a name with a space": request("/events/ingest", lines=b"x y: 1\r\n"),
    "a folded header": request("/events/ingest", lines=b"x: 1\r\n y\r\n"),
    "a bad chunk": request("/events/ingest", headers=JSON | CHUNKED).replace(
        b"content-length: 0\r\n", b""
    )
    + b"zz\r\n",
    "a tunnel": b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n",
}


def test_malformed_http_gets_400(strict: RunningInbox, subtests: pytest.Subtests) -> None:
    for name, sent in MALFORMED.items():
        with subtests.test(name), recording_nothing(strict):
            with strict.connect() as connection:
                assert connection.send(sent).read_response().status == 400
                assert connection.is_closed()
            assert strict.http.get("/healthz").status_code == 200


def test_an_upgrade_request_is_received_with_its_body(strict: RunningInbox) -> None:
    sent = partner_webhook("upgrade")
    offer = {"connection": "Upgrade", "upgrade": "websocket"}
    data = request("/webhooks/partner", sent.body, headers=sent.headers | offer)
    with strict.connect() as connection:
        connection.send(data[:-3])
        time.sleep(0.05)  # the rest of the body arrives in another read
        connection.send(data[-3:])
        assert connection.read_response().status == 202
    assert strict.payload("upgrade")[0] == sent.body


@pytest.mark.parametrize("path", PATHS)
def test_a_sender_that_disconnects_midway_records_nothing(
    nothing_recorded: RunningInbox, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    for leave in ("close", "reset"):
        with nothing_recorded.connect() as connection:
            connection.send(request(path, headers=headers_of(path, 1000)) + b"{")
            time.sleep(0.05)
            getattr(connection, leave)()
    time.sleep(0.1)
    assert nothing_recorded.http.get("/healthz").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_many_stalled_connections_do_not_block_others(strict: RunningInbox) -> None:
    with ExitStack() as stack:
        stalled = [stack.enter_context(strict.connect()) for _ in range(200)]
        for connection in stalled:
            connection.send(b"POST /webhooks/partner HTTP/1.1\r\n")
        with ThreadPoolExecutor(8) as senders:
            started = time.monotonic()
            sent = [partner_webhook(f"stalled-{number}") for number in range(40)]
            responses = list(senders.map(strict.send, sent))
            assert time.monotonic() - started < 3
    assert {response.status_code for response in responses} == {202}
