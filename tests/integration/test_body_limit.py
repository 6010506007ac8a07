"""A body of exactly `max_body_bytes` is accepted, and one of a byte more is not."""

import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from onceward.http.responses import ASGIApp
from tests.integration.running import RunningInbox, make_inbox, request

LIMIT_BYTES = 3_000
SIZES = [LIMIT_BYTES - 1, LIMIT_BYTES, LIMIT_BYTES + 1]
HEADERS = {"content-type": "application/json"}
BODIES: dict[str, dict[str, object]] = {
    "/webhooks/lab": {},
    "/events/ingest": {"event_type": "order.paid", "payload": {}},
    "/admin/jobs/999999999/requeue": {"actor": "ann", "reason": "because"},
}
NUMBERS = itertools.count()
ACCEPTED = {"/webhooks/lab": 202, "/events/ingest": 202, "/admin/jobs/999999999/requeue": 404}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInbox]:
    """Run a service with a small limit."""
    url = f"sqlite:///{tmp_path_factory.mktemp('limit') / 'onceward.db'}"
    running = RunningInbox(make_inbox(url, max_body_bytes=LIMIT_BYTES), dev=True)
    yield running
    running.close()


def body_of(path: str, size: int) -> bytes:
    """Return a valid body of exactly `size` bytes, with an id of its own."""
    event = {} if path.startswith("/admin") else {"event_id": new_id()}
    return json.dumps(event | BODIES[path]).encode().ljust(size)


def new_id() -> str:
    return f"evt_{next(NUMBERS)}"


def expected(path: str, size: int) -> int:
    return 413 if size > LIMIT_BYTES else ACCEPTED[path]


def head_of(path: str, **headers: str) -> bytes:
    head = request(path, headers=HEADERS | {"x-event-id": new_id()} | headers)
    return head if "content-length" in headers else head.replace(b"content-length: 0\r\n", b"")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# Through the server.


WRITES = ["one write", "head first", "in the middle"]


def test_with_a_content_length(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for path, size, writes in itertools.product(BODIES, SIZES, WRITES):
        with subtests.test(f"{size} bytes to {path}: {writes}"):
            head = head_of(path, **{"content-length": str(size)})
            whole = head + body_of(path, size)
            cut = {
                "one write": len(whole),
                "head first": len(head),
                "in the middle": len(whole) - 1,
            }
            first, rest = whole[: cut[writes]], whole[cut[writes] :]
            assert status_of(service, first, rest) == expected(path, size)


def test_with_chunks(service: RunningInbox, subtests: pytest.Subtests) -> None:
    for path, size, last_bytes, writes in itertools.product(
        BODIES, SIZES, (0, 1, LIMIT_BYTES - 1), ("one write", "two writes")
    ):
        with subtests.test(f"{size} bytes to {path}, {last_bytes} of them last: {writes}"):
            body = body_of(path, size)
            chunks = [
                chunk(part)
                for part in (body[: size - last_bytes], body[size - last_bytes :])
                if part
            ]
            head = head_of(path, **{"transfer-encoding": "chunked"})
            first, rest = head + b"".join(chunks), b"0\r\n\r\n"
            if writes == "one write":
                first, rest = first + rest, b""
            assert status_of(service, first, rest) == expected(path, size)


def status_of(service: RunningInbox, first: bytes, rest: bytes) -> int:
    with service.connect() as connection:
        connection.send(first)
        if rest:
            time.sleep(0.02)  # the server reads the first write by itself
            connection.send(rest)
        return connection.read_response().status


# Through ASGI.


@pytest.fixture
async def app(sqlite_url: str) -> AsyncIterator[ASGIApp]:
    """Return the application of a service with a small limit."""
    service = make_inbox(sqlite_url, max_body_bytes=LIMIT_BYTES, workers=0).service(dev=True)
    await service.open()
    yield service.app()
    await service.close()


async def test_in_messages(app: ASGIApp, subtests: pytest.Subtests) -> None:
    for path, size, declared, cuts in itertools.product(
        BODIES, SIZES, ("declared", ""), [(), (1,), (LIMIT_BYTES - 1,), (1_000, 2_000)]
    ):
        with subtests.test(f"{size} bytes to {path}, cut at {cuts}: {declared}"):
            body = body_of(path, size)
            edges = [0, *cuts, size]
            parts = [body[start:end] for start, end in pairwise(edges)]
            assert b"".join(parts) == body
            assert await call(app, path, parts, size if declared else None) == expected(path, size)


async def test_a_declared_length_is_refused_before_the_body(
    app: ASGIApp, subtests: pytest.Subtests
) -> None:
    for path in BODIES:
        with subtests.test(path):
            assert await call(app, path, [], LIMIT_BYTES + 1) == 413


async def test_a_declared_length_that_is_too_small_does_not_help(
    app: ASGIApp, subtests: pytest.Subtests
) -> None:
    for path in BODIES:
        with subtests.test(path):
            body = body_of(path, LIMIT_BYTES + 1)
            assert await call(app, path, [body], LIMIT_BYTES) == 413
            assert await call(app, path, [body[:-1], body[-1:]], LIMIT_BYTES) == 413


async def test_an_empty_last_message_does_not_count(
    app: ASGIApp, subtests: pytest.Subtests
) -> None:
    for path in BODIES:
        with subtests.test(path):
            body = body_of(path, LIMIT_BYTES)
            assert await call(app, path, [body, b""], None) == ACCEPTED[path]


async def call(app: ASGIApp, path: str, parts: Sequence[bytes], declared: int | None) -> int:
    """Post a body in messages, and return the status."""
    headers = {**HEADERS, "x-event-id": new_id(), "host": "127.0.0.1"}
    if declared is not None:
        headers["content-length"] = str(declared)
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }
    waiting = list(parts)
    sent: list[Any] = []

    async def receive() -> Any:
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status
