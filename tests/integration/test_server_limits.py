"""Senders that are too large, too slow or badly behaved: each has an answer and an end."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from onceward.http.server import protocol
from tests.integration.running import (
    JSON,
    RunningInbox,
    make_inbox,
    partner_webhook,
    request,
)

BODY_LIMIT = 10_000
HEADER_LIMIT = 4_096
SLOW_WRITE_SECONDS = 0.5
CHUNKED = {"transfer-encoding": "chunked"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """A service with little room and little patience, but not with its ledger."""
    inbox = make_inbox(
        f"sqlite:///{tmp_path_factory.mktemp('strict') / 'onceward.db'}",
        max_body_bytes=BODY_LIMIT,
        max_header_bytes=HEADER_LIMIT,
        max_headers=20,
        body_timeout_seconds=SLOW_WRITE_SECONDS,
        max_pending_bytes=2 * BODY_LIMIT,
    )
    running = RunningInbox(inbox, dev=True)
    yield running
    running.close()


@pytest.fixture
def nothing_recorded(strict: RunningInbox) -> Iterator[RunningInbox]:
    """A service in which the test must leave no row."""
    before = strict.rows()
    yield strict
    assert strict.rows() == before


def headers_of(path: str, body_length: int) -> dict[str, str]:
    token = {"authorization": "Bearer none"} if path.startswith("/admin") else {}
    return JSON | token | {"content-length": str(body_length), "x-event-id": "large"}


PATHS = ["/webhooks/partner", "/events/ingest", "/admin/jobs/1/requeue"]


# Too large.


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [BODY_LIMIT + 1, 10**12, 10**40])
def test_a_body_that_is_announced_too_large_is_refused_unread(
    nothing_recorded: RunningInbox, path: str, length: int
) -> None:
    with nothing_recorded.raw() as connection:
        connection.send(request(path, headers=headers_of(path, length)))
        answer = connection.answer()
        assert answer.status in (413, 400)  # a number beyond 64 bits is no number
        assert answer.status == 413 or length == 10**40
        assert connection.is_closed()


@pytest.mark.parametrize("path", PATHS)
def test_chunks_without_end_are_refused_and_not_read_on(
    nothing_recorded: RunningInbox, path: str
) -> None:
    head = request(path, headers=headers_of(path, 0) | CHUNKED).replace(
        b"content-length: 0\r\n", b""
    )
    with nothing_recorded.raw() as connection:
        connection.send(head)
        for _ in range(11):
            connection.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        assert connection.answer().status == 413
        assert connection.is_closed()
    with nothing_recorded.raw() as connection:
        connection.send(head)
        assert connection.send_until_closed(b"3e8\r\n" + b" " * 1000 + b"\r\n") < 50_000_000


def test_chunks_that_come_in_one_piece_are_measured_too(nothing_recorded: RunningInbox) -> None:
    path, size = "/webhooks/partner", BODY_LIMIT + 1
    head = request(path, headers=headers_of(path, 0) | CHUNKED).replace(
        b"content-length: 0\r\n", b""
    )
    with nothing_recorded.raw() as connection:
        connection.send(head + b"%x\r\n" % size + b" " * size + b"\r\n0\r\n\r\n")
        assert connection.answer().status == 413


def test_a_body_of_just_the_limit_is_taken(strict: RunningInbox) -> None:
    body = b'{"type":"order.paid"}'.ljust(BODY_LIMIT)
    assert strict.signed(partner_webhook("limit", body)).status_code == 202
    assert strict.payload("limit")[0] == body
    assert strict.signed(partner_webhook("beyond", body + b" ")).status_code == 413


LARGE_HEADERS = {
    "one that is too long": f"x-long: {'x' * HEADER_LIMIT}\r\n".encode(),
    "too many": b"".join(f"x-{number}: 1\r\n".encode() for number in range(30)),
    "the same too often": b"x-same: 1\r\n" * 30,
    "all of them too long": b"".join(
        f"x-{number}: {'x' * 500}\r\n".encode() for number in range(10)
    ),
}


@pytest.mark.parametrize("path", [*PATHS, "/healthz", "/nowhere"])
@pytest.mark.parametrize("lines", LARGE_HEADERS.values(), ids=LARGE_HEADERS)
def test_large_headers_are_refused(nothing_recorded: RunningInbox, path: str, lines: bytes) -> None:
    with nothing_recorded.raw() as connection:
        connection.send(request(path, headers=JSON, lines=lines))
        answer = connection.answer()
        if path == "/nowhere" and answer.status == 404:
            pytest.fail("the headers are looked at first, whatever is asked for")
        assert answer.status == 431
        assert connection.is_closed()


def test_a_long_address_is_refused(nothing_recorded: RunningInbox) -> None:
    for path in ("/admin/events?event_id=", "/webhooks/"):
        with nothing_recorded.raw() as connection:
            method = "GET" if "admin" in path else "POST"
            connection.send(request(path + "x" * HEADER_LIMIT, method=method))
            assert connection.answer().status == 431


def test_headers_without_end_are_cut_off(nothing_recorded: RunningInbox) -> None:
    with nothing_recorded.raw() as connection:
        connection.send(b"POST /events/ingest HTTP/1.1\r\nx-long: ")
        for _ in range(5):
            connection.send(b"x" * 1000)
        assert connection.answer().status == 431
        assert connection.is_closed()


def test_a_body_before_it_does_not_count_as_a_header_block(strict: RunningInbox) -> None:
    sent = [partner_webhook(f"before-{n}", b"{}".ljust(HEADER_LIMIT + 1000)) for n in (1, 2)]
    whole = b"".join(request("/webhooks/partner", it.body, headers=it.headers) for it in sent)
    with strict.raw() as connection:
        connection.send(whole[: -HEADER_LIMIT - 1100])  # in the middle of the second header block
        time.sleep(0.05)
        connection.send(whole[-HEADER_LIMIT - 1100 :])
        assert [connection.answer().status for _ in sent] == [202, 202]


# Too slow.


def test_a_slow_body_is_given_up_while_others_are_served(nothing_recorded: RunningInbox) -> None:
    sent = partner_webhook("slow")
    with ExitStack() as stack:
        slow = [stack.enter_context(nothing_recorded.raw()) for _ in range(50)]
        for connection in slow:
            whole = request("/webhooks/partner", sent.body, headers=sent.headers)
            connection.send(whole[:-1])
        started = time.monotonic()
        for _ in range(20):
            assert nothing_recorded.http.get("/healthz").status_code == 200
        assert time.monotonic() - started < SLOW_WRITE_SECONDS
        for connection in slow:
            answer = connection.answer()
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            assert connection.is_closed()
        assert SLOW_WRITE_SECONDS / 2 < time.monotonic() - started < SLOW_WRITE_SECONDS + 2


@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
def test_a_slow_header_block_is_given_up_however_often_a_byte_comes(
    nothing_recorded: RunningInbox, before: int
) -> None:
    with nothing_recorded.raw() as connection:
        for _ in range(before):
            connection.send(request("/healthz", method="GET"))
            assert connection.answer().status == 200
        started = time.monotonic()
        for byte in b"POST /events":
            connection.send(bytes([byte]))
            time.sleep(SLOW_WRITE_SECONDS / 20)
        assert connection.answer().status == 408
        assert connection.is_closed()
        assert SLOW_WRITE_SECONDS * 0.9 < time.monotonic() - started < SLOW_WRITE_SECONDS + 1


def test_a_connection_on_which_nothing_is_said_is_closed(strict: RunningInbox) -> None:
    with strict.raw() as connection:
        assert connection.answer().status == 408
        assert connection.is_closed()


def test_line_breaks_between_requests_do_not_hold_a_connection(strict: RunningInbox) -> None:
    with strict.raw() as connection:
        connection.send(request("/healthz", method="GET"))
        assert connection.answer().status == 200
        started = time.monotonic()
        connection.send_until_closed(b"\r\n", pause_seconds=0.05)
        assert time.monotonic() - started < SLOW_WRITE_SECONDS + 2


def test_a_body_that_goes_on_after_the_answer_is_cut_off(nothing_recorded: RunningInbox) -> None:
    with nothing_recorded.raw() as connection:
        head = request("/nowhere", headers=CHUNKED).replace(b"content-length: 0\r\n", b"")
        connection.send(head + b"1\r\nx\r\n")
        assert connection.answer().status == 404
        started = time.monotonic()
        connection.send_until_closed(b"1\r\nx\r\n", pause_seconds=0.02)
        assert time.monotonic() - started < SLOW_WRITE_SECONDS + 2


def test_a_connection_that_behaves_is_kept(strict: RunningInbox) -> None:
    with strict.raw() as connection:
        for number in range(4):
            sent = partner_webhook(f"kept-alive-{number}")
            connection.send(request("/webhooks/partner", sent.body, headers=sent.headers))
            assert connection.answer().status == 202
            time.sleep(SLOW_WRITE_SECONDS / 2)
        time.sleep(SLOW_WRITE_SECONDS)
        connection.send(request("/healthz", method="GET"))
        assert connection.answer().status == 200


def test_a_connection_is_kept_after_a_refusal(strict: RunningInbox) -> None:
    with strict.raw() as connection:
        connection.send(request("/webhooks/partner", b"{}", headers=JSON))
        assert connection.answer().status == 401
        time.sleep(SLOW_WRITE_SECONDS * 1.5)
        connection.send(request("/healthz", method="GET"))
        assert connection.answer().status == 200


def test_a_connection_that_is_idle_for_long_is_closed(
    strict: RunningInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "KEEP_ALIVE_SECONDS", 0.4)
    with strict.raw() as connection:
        for number in range(4):
            sent = partner_webhook(f"idle-{number}")
            connection.send(request("/webhooks/partner", sent.body, headers=sent.headers))
            assert connection.answer().status == 202
            time.sleep(0.2)
        started = time.monotonic()
        assert connection.is_closed()
        assert 0.1 < time.monotonic() - started < 1


@pytest.mark.parametrize(
    ("version", "said"), [("1.1", "close"), ("1.0", "close"), ("1.0", "keep-alive")]
)
def test_the_last_request_of_a_connection_is_answered_and_the_connection_closed(
    strict: RunningInbox, version: str, said: str
) -> None:
    sent = partner_webhook(f"last-{version}-{said}")
    headers = sent.headers | {"connection": said}
    whole = request("/webhooks/partner", sent.body, headers=headers)
    with strict.raw() as connection:
        connection.send(whole.replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        answer = connection.answer()
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert connection.is_closed()


@pytest.mark.parametrize("name", ["partn%65r", "partner#part", "partner?a=%41#part"])
def test_an_address_may_be_written_in_other_ways(strict: RunningInbox, name: str) -> None:
    sent = partner_webhook(f"evt_{name}")
    with strict.raw() as raw:
        answer = raw.send(request(f"/webhooks/{name}", sent.body, headers=sent.headers)).answer()
    assert answer.status == 202


def test_bodies_that_arrive_at_once_share_the_memory(nothing_recorded: RunningInbox) -> None:
    sent = partner_webhook("memory", b" " * 9_000)
    whole = request("/webhooks/partner", sent.body, headers=sent.headers)
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(nothing_recorded.raw()) for _ in range(3))
        for connection in (first, second, third):
            connection.send(whole[:-5000])
            time.sleep(0.05)
            connection.send(whole[-5000:-10])
            time.sleep(0.05)
        answer = third.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert json.loads(answer.body)["error"] == "overloaded"
    time.sleep(0.1)
    with nothing_recorded.raw() as connection:  # what was held is free again
        connection.send(request("/events/ingest", headers=headers_of("", 9_000)) + b" " * 8_000)
        time.sleep(0.05)
        connection.send(b" " * 1_000)
        assert connection.answer().status == 422


# Badly behaved.

BROKEN = {
    "noise": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "another version": b"POST / HTTP/9.9\r\n\r\n",
    "bytes in the address": b"POST /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "no address": b"GET http:// HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "two lengths": request("/events/ingest", b"{}", lines=b"content-length: 3\r\n"),
    "length and chunks": request("/events/ingest", b"0\r\n\r\n", headers=CHUNKED),
    "no length": request("/events/ingest", headers={"content-length": "many"}),
    "a negative length": request("/events/ingest", headers={"content-length": "-1"}),
    "a name with a space": request("/events/ingest", lines=b"x y: 1\r\n"),
    "a folded header": request("/events/ingest", lines=b"x: 1\r\n y\r\n"),
    "a bad chunk": request("/events/ingest", headers=JSON | CHUNKED).replace(
        b"content-length: 0\r\n", b""
    )
    + b"zz\r\n",
    "a tunnel": b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n",
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
def test_what_is_not_http_is_refused(nothing_recorded: RunningInbox, sent: bytes) -> None:
    with nothing_recorded.raw() as connection:
        assert connection.send(sent).answer().status == 400
        assert connection.is_closed()
    assert nothing_recorded.http.get("/healthz").status_code == 200


def test_a_request_to_upgrade_is_never_taken_without_its_body(
    nothing_recorded: RunningInbox,
) -> None:
    offer = {"x-event-id": "upgrade", "connection": "Upgrade", "upgrade": "websocket"}
    head, name, rest = request("/webhooks/lab", b"{}", headers=offer).rpartition(b"\r\nupgrade")
    with nothing_recorded.raw() as connection:
        connection.send(head + name[:4])  # too late to see it coming
        time.sleep(0.05)
        connection.send(name[4:] + rest)
        assert connection.answer().status == 400


@pytest.mark.parametrize("path", PATHS)
def test_a_sender_that_leaves_in_the_middle_leaves_nothing(
    nothing_recorded: RunningInbox, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    for leave in ("close", "reset"):
        with nothing_recorded.raw() as connection:
            connection.send(request(path, headers=headers_of(path, 1000)) + b"{")
            time.sleep(0.05)
            getattr(connection, leave)()
    time.sleep(0.1)
    assert nothing_recorded.http.get("/healthz").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_crowd_of_bad_senders_does_not_keep_a_good_one_out(strict: RunningInbox) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(strict.raw()) for _ in range(200)]
        for connection in crowd:
            connection.send(b"POST /webhooks/partner HTTP/1.1\r\n")
        with ThreadPoolExecutor(8) as senders:
            started = time.monotonic()
            sent = [partner_webhook(f"crowd-{number}") for number in range(40)]
            answers = list(senders.map(strict.signed, sent))
            assert time.monotonic() - started < 3
    assert {answer.status_code for answer in answers} == {202}
