"""Requests that a task handles: bodies on demand, and responses in parts."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from onceward.http.responses import Message, Receive, Scope, Send
from onceward.http.server.connection import Connection
from onceward.http.server.exchange import MAX_BUFFERED_BYTES
from tests.connections import (
    Application,
    Transport,
    bodies_of,
    chunked_head,
    connect,
    iterations,
    webhook,
)
from tests.integration.running import request

Handle = Callable[[Receive, Send], Awaitable[None]]
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
GET = request("/", method="GET")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class TaskApplication:
    """Handles every request in a task, with one function."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.running = 0

    def start_directly(self, *_: object) -> None:
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        try:
            await self.handle(receive, send)
        finally:
            self.running -= 1


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def read_all(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    return body


def serve(handle: Handle) -> tuple[TaskApplication, Connection, Transport]:
    application, transport = TaskApplication(handle), Transport()
    return application, connect(application, transport), transport


def written(transport: Transport) -> bytes:
    return b"".join(transport.writes)


# Responses in parts.


async def test_an_empty_part_does_not_end_the_response() -> None:
    async def handle(_: Receive, send: Send) -> None:
        await send(START)
        for body in (b"", b"one", b"", b"two"):
            await send(part(body, more=True))
        await send(part(b""))

    _, connection, transport = serve(handle)
    connection.data_received(GET)
    await iterations(5)
    head, _, body = written(transport).partition(b"\r\n\r\n")
    assert b"\r\ntransfer-encoding: chunked\r\n" in head + b"\r\n"
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    assert not transport.is_closed
    connection.connection_lost(None)


async def test_a_response_that_fails_midway_does_not_look_complete() -> None:
    async def handle(_: Receive, send: Send) -> None:
        await send(START)
        await send(part(b"half", more=True))
        raise RuntimeError("the rest is missing")

    _, connection, transport = serve(handle)
    connection.data_received(GET + GET)
    await iterations(8)
    assert written(transport).count(b"HTTP/1.1 ") == 1
    assert not written(transport).endswith(b"0\r\n\r\n")
    assert transport.is_aborted
    connection.connection_lost(None)


async def test_a_response_to_head_has_the_length_and_no_body() -> None:
    async def handle(_: Receive, send: Send) -> None:
        await send(START)
        await send(part(b"body"))

    _, connection, transport = serve(handle)
    connection.data_received(request("/", method="HEAD"))
    await iterations(4)
    assert b"\r\ncontent-length: 4\r\n" in written(transport)
    assert written(transport).endswith(b"\r\n\r\n")
    connection.connection_lost(None)


async def test_an_application_may_ask_for_the_last_response() -> None:
    async def handle(_: Receive, send: Send) -> None:
        await send({**START, "headers": [(b"connection", b"close")]})
        await send(part(b"last"))

    _, connection, transport = serve(handle)
    connection.data_received(GET)
    await iterations(4)
    assert written(transport).count(b"connection: close") == 1
    assert transport.is_closed
    connection.connection_lost(None)


@pytest.mark.parametrize("leaves", [False, True])
async def test_the_application_waits_for_a_client_that_does_not_read(*, leaves: bool) -> None:
    sent = 0

    async def handle(_: Receive, send: Send) -> None:
        nonlocal sent
        await send(START)
        for _number in range(5):
            await send(part(b"part", more=True))
            sent += 1

    application, connection, transport = serve(handle)
    connection.data_received(GET)
    connection.pause_writing()
    await iterations(10)
    assert (sent, application.running) == (0, 1)
    if leaves:
        connection.connection_lost(None)
    else:
        connection.resume_writing()
    await iterations(10)
    assert (sent, application.running) == (5, 0)
    assert written(transport).count(b"part") == (1 if leaves else 5)


# Bodies.


async def test_a_body_that_nobody_reads_stops_the_reading() -> None:
    may_read = asyncio.Event()
    received = 0

    async def handle(receive: Receive, send: Send) -> None:
        nonlocal received
        await may_read.wait()
        received = len(await read_all(receive))
        await send(START)
        await send(part(b"done"))

    _, connection, transport = serve(handle)
    chunk = b"%x\r\n%b\r\n" % (20_000, b"x" * 20_000)
    connection.data_received(chunked_head())
    count = 0
    while transport.is_reading():
        connection.data_received(chunk)
        count += 1
        assert count < 10
    assert count * 20_000 > MAX_BUFFERED_BYTES
    may_read.set()
    for _ in range(10):  # full again and again
        await iterations(3)
        assert transport.is_reading()
        connection.data_received(chunk)
        count += 1
    connection.data_received(b"0\r\n\r\n")
    await iterations(5)
    assert received == count * 20_000
    assert written(transport).endswith(b"done")
    connection.connection_lost(None)


@pytest.mark.parametrize("waits", [False, True], ids=["called later", "waiting"])
async def test_receive_returns_a_disconnect_once_the_response_is_complete(*, waits: bool) -> None:
    seen: list[str] = []

    async def listen(receive: Receive) -> None:
        seen.append((await receive())["type"])

    async def handle(receive: Receive, send: Send) -> None:
        await read_all(receive)
        async with asyncio.TaskGroup() as group:
            if waits:
                group.create_task(listen(receive))
                await iterations(1)
            await send(START)
            await send(part(b"done"))
            if not waits:
                await listen(receive)

    application, connection, transport = serve(handle)
    connection.data_received(webhook(b"body"))
    await iterations(10)
    assert seen == ["http.disconnect"]
    assert application.running == 0
    assert written(transport).endswith(b"done")
    connection.connection_lost(None)


async def test_receive_returns_a_disconnect_when_the_client_has_left() -> None:
    seen: list[str] = []

    async def handle(receive: Receive, _: Send) -> None:
        await read_all(receive)
        seen.append("the body")
        seen.append((await receive())["type"])

    application, connection, _ = serve(handle)
    connection.data_received(webhook(b"body"))
    await iterations(5)
    assert seen == ["the body"]
    connection.connection_lost(None)
    await iterations(3)
    assert seen == ["the body", "http.disconnect"]
    assert application.running == 0


async def test_no_permission_to_send_the_body_follows_the_response() -> None:
    async def handle(receive: Receive, send: Send) -> None:
        await send(START)
        await send(part(b"early"))
        await receive()

    _, connection, transport = serve(handle)
    connection.data_received(webhook(b"body", expect="100-continue")[: -len(b"body")])
    await iterations(8)
    assert CONTINUE not in written(transport)
    connection.connection_lost(None)


async def test_no_permission_to_send_the_body_follows_a_direct_refusal() -> None:
    transport = Transport()
    connection = connect(Application(refuses=True), transport)
    connection.data_received(webhook(b"body", expect="100-continue")[: -len(b"body")])
    await iterations(4)
    assert bodies_of(transport) == [b"refused"]
    connection.connection_lost(None)


async def test_permission_to_send_the_body_is_given_once_it_is_read() -> None:
    may_read = asyncio.Event()

    async def handle(receive: Receive, send: Send) -> None:
        await may_read.wait()
        body = await read_all(receive)
        await send(START)
        await send(part(body))

    _, connection, transport = serve(handle)
    connection.data_received(webhook(b"body", expect="100-continue")[: -len(b"body")])
    await iterations(3)
    assert written(transport) == b""
    may_read.set()
    await iterations(3)
    assert written(transport) == CONTINUE
    connection.data_received(b"body")
    await iterations(5)
    assert written(transport).count(CONTINUE) == 1
    assert written(transport).endswith(b"\r\n\r\nbody")
    connection.connection_lost(None)
