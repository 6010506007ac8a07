"""The limits that hold in every server: those of the application, not of the connection."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.running import JSON, RunningInbox, make_inbox, partner_webhook, request

BODY_LIMIT = 10_000
TIMEOUT_SECONDS = 0.5
FORGED = JSON | {"x-signature": "00"}
"""Without any signature, the body would not be read."""
PATHS = ["/webhooks/partner", "/events/ingest", "/admin/jobs/1/requeue"]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """Run a service with small limits in uvicorn's own protocol."""
    inbox = make_inbox(
        f"sqlite:///{tmp_path_factory.mktemp('other') / 'onceward.db'}",
        own_http_protocol=False,
        max_body_bytes=BODY_LIMIT,
        max_header_bytes=4_096,
        max_headers=20,
        body_timeout_seconds=TIMEOUT_SECONDS,
        max_pending_bytes=2 * BODY_LIMIT,
    )
    running = RunningInbox(inbox, dev=True)
    yield running
    running.close()


@pytest.fixture(autouse=True)
def nothing_recorded(other: RunningInbox) -> Iterator[None]:
    before = other.rows()
    yield
    assert other.rows() == before


def chunked(path: str) -> bytes:
    head = request(path, headers=FORGED | {"transfer-encoding": "chunked"})
    return head.replace(b"content-length: 0\r\n", b"")


@pytest.mark.parametrize("path", PATHS)
def test_a_large_content_length_gets_413(other: RunningInbox, path: str) -> None:
    with other.connect() as connection:
        headers = JSON | {"content-length": str(BODY_LIMIT + 1)}
        assert connection.send(request(path, headers=headers)).read_response().status == 413


@pytest.mark.parametrize("path", PATHS)
def test_endless_chunks_get_413(other: RunningInbox, path: str) -> None:
    with other.connect() as connection:
        connection.send(chunked(path) + (b"3e8\r\n" + b" " * 1000 + b"\r\n") * 11)
        assert connection.read_response().status == 413


@pytest.mark.parametrize("path", PATHS)
def test_many_headers_get_431(other: RunningInbox, path: str) -> None:
    lines = b"".join(b"x-%d: 1\r\n" % number for number in range(30))
    with other.connect() as connection:
        connection.send(request(path, headers=FORGED, lines=lines))
        assert connection.read_response().status == 431


@pytest.mark.parametrize("path", PATHS)
def test_a_slow_body_gets_408(other: RunningInbox, path: str) -> None:
    started = time.monotonic()
    with other.connect() as connection:
        connection.send(request(path, headers=FORGED | {"content-length": "10"}) + b"{")
        assert connection.read_response().status == 408
    assert time.monotonic() - started < TIMEOUT_SECONDS + 2


def test_concurrent_bodies_share_one_memory_limit(other: RunningInbox) -> None:
    sent = partner_webhook("memory", b" " * 9_000)
    data = request("/webhooks/partner", sent.body, headers=sent.headers)
    with ExitStack() as stack:
        connections = [stack.enter_context(other.connect()) for _ in range(3)]
        for connection in connections:
            connection.send(data[:-10])
            time.sleep(0.05)  # the bodies arrive one after the other
        assert connections[-1].read_response().status == 503
