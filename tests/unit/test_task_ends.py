"""Requests that a task handles: every end of the application ends the exchange too."""

import asyncio
from collections.abc import Awaitable, Callable

from onceward.http.responses import Message, Receive, Respond, Response, Scope, Send
from onceward.http.server.connection import Connection
from onceward.sources.request import Headers
from tests.connections import (
    Application,
    Transport,
    chunked_head,
    connect,
    iterations,
    webhook,
)

Run = Callable[[Scope, Receive, Send], Awaitable[None]]


class TaskApplication(Application):
    """Handles every request with a coroutine function."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def start_directly(self, _: Scope, __: Headers, ___: Respond) -> None:  # type: ignore[override] # handles nothing directly
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


def start(run: Run) -> tuple[Connection, Transport]:
    transport = Transport()
    return connect(TaskApplication(run), transport), transport


async def test_a_response_before_the_body_lets_the_connection_read_on() -> None:
    answer = asyncio.Event()

    async def run(_: Scope, __: Receive, send: Send) -> None:
        await answer.wait()
        await Response(200, b"early").send(send)

    connection, transport = start(run)
    data = webhook(b"x" * 300_000)
    connection.data_received(data[:100_000])
    await iterations(5)
    connection.data_received(data[100_000:200_000])
    await iterations(5)
    assert not transport.is_reading()  # the application does not read
    answer.set()
    await iterations(10)
    assert transport.is_reading()
    connection.data_received(data[200_000:] + webhook(b"next"))
    await iterations(20)
    assert b"".join(transport.writes).count(b"HTTP/1.1 200 ") == 2
    connection.connection_lost(None)


async def test_a_cancelled_application_does_not_leave_the_client_waiting() -> None:
    async def run(_: Scope, __: Receive, ___: Send) -> None:
        raise asyncio.CancelledError

    connection, transport = start(run)
    connection.data_received(webhook(b"x"))
    await iterations(5)
    assert transport.writes[0].startswith(b"HTTP/1.1 500 ")
    connection.connection_lost(None)


async def test_a_bad_chunk_does_not_put_a_response_into_another() -> None:
    async def run(_: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        while (await receive())["type"] == "http.request":
            pass

    connection, transport = start(run)
    connection.data_received(chunked_head() + b"1\r\nx\r\n")
    await iterations(5)
    connection.data_received(b"zz\r\n")
    await iterations(5)
    assert b"".join(transport.writes).count(b"HTTP/1.1 ") == 1
    assert transport.is_closed
    connection.connection_lost(None)


async def test_an_incomplete_response_breaks_the_connection() -> None:
    async def run(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})

    connection, transport = start(run)
    connection.data_received(webhook(b"x"))
    await iterations(5)
    sent = b"".join(transport.writes)
    assert sent.endswith(b"\r\n\r\n4\r\npart\r\n")  # without the last chunk
    assert transport.is_closed
    connection.connection_lost(None)


async def test_a_response_to_head_has_no_body_even_if_it_is_an_error() -> None:
    async def run(_: Scope, __: Receive, ___: Send) -> None:
        raise ValueError

    connection, transport = start(run)
    connection.data_received(webhook(b"").replace(b"POST", b"HEAD"))
    await iterations(5)
    sent = b"".join(transport.writes)
    assert sent.startswith(b"HTTP/1.1 500 ")
    assert sent.endswith(b"\r\n\r\n")
    connection.connection_lost(None)


async def test_receiving_after_the_response_returns_a_disconnect() -> None:
    received: list[Message] = []

    async def run(_: Scope, receive: Receive, send: Send) -> None:
        received.append(await receive())
        await Response(200, b"").send(send)
        received.append(await receive())

    connection, _ = start(run)
    connection.data_received(webhook(b"x"))
    await iterations(5)
    assert [message["type"] for message in received] == ["http.request", "http.disconnect"]
    connection.connection_lost(None)


async def test_permission_to_send_the_body_is_given_once_and_not_after_a_refusal() -> None:
    reads = asyncio.Event()

    async def run(_: Scope, receive: Receive, __: Send) -> None:
        await reads.wait()
        await receive()

    head = webhook(b"xyz", expect="100-continue")[:-3]
    connection, transport = start(run)
    connection.data_received(head)
    await iterations(3)
    reads.set()
    await iterations(3)
    assert transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    connection.connection_lost(None)

    reads.clear()
    connection, transport = start(run)
    connection.data_received(head)
    await iterations(3)
    connection.check_deadlines(asyncio.get_running_loop().time() + 11)
    reads.set()
    await iterations(5)
    assert b"".join(transport.writes).startswith(b"HTTP/1.1 408 ")
    assert b"100 Continue" not in b"".join(transport.writes)
    connection.connection_lost(None)
