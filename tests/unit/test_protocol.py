"""Requests are taken a few in each turn of the loop, and answered in one piece and in order."""

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

import pytest

from onceward.http.responses import Receive, Response, Scope, Send
from onceward.http.server.protocol import BoundedProtocol, DirectQueue, FlushQueue
from onceward.http.server.server import REQUESTS_PER_TICK, Server
from onceward.http.server.writes import BufferedTransport, TickQueue
from onceward.settings import Settings
from tests.integration.running import request

MANY = 5 * REQUESTS_PER_TICK + 1


class Application:
    """Notes what it takes, and fails for what is empty."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []

    def can_handle_directly(self, path: str) -> bool:
        return bool(path)

    def handle_directly(self, _: Scope, body: bytes, respond: Callable[[Response], None]) -> None:
        self.handled.append(body)
        if not body:
            raise RuntimeError("an answer could not be sent")
        respond(Response(202, body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


async def test_others_have_their_turn_between() -> None:
    application, responses = Application(), list[Response]()
    requests = request_queue(application)
    seen: list[int] = []

    def look() -> None:
        seen.append(len(application.handled))
        if seen[-1] < MANY:
            asyncio.get_running_loop().call_soon(look)

    bodies = [b"%d" % number for number in range(MANY)]
    for body in bodies:
        requests.add({}, body, responses.append)
    look()
    for _ in range(MANY):
        await asyncio.sleep(0)

    assert application.handled == bodies
    steps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert max(steps) == REQUESTS_PER_TICK


async def test_one_is_taken_in_the_same_turn() -> None:
    application = Application()
    request_queue(application).add({}, b"lone", lambda _: None)
    await asyncio.sleep(0)
    assert application.handled == [b"lone"]


async def test_what_goes_wrong_with_one_does_not_hold_up_the_next() -> None:
    application, responses = Application(), list[Response]()
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    requests = request_queue(application)
    for body in (b"before", b"", b"after", b"", b"last"):
        requests.add({}, body, responses.append)
    for _ in range(10):
        await asyncio.sleep(0)
    requests.add({}, b"later", responses.append)
    await asyncio.sleep(0)

    assert [response.body for response in responses] == [b"before", b"after", b"last", b"later"]
    assert [type(error) for error in told] == [RuntimeError, RuntimeError]


def request_queue(application: Application) -> DirectQueue:
    return TickQueue(application.handle_directly, limit=REQUESTS_PER_TICK)


def flush_queue() -> FlushQueue:
    return TickQueue(BufferedTransport.flush)


class Transport(asyncio.Transport):
    """Notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class Broken(Transport):
    """Cannot be written to."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("it is gone")


def connected(application: Application) -> tuple[BoundedProtocol, Transport]:
    server = Server(application, Settings())
    server.config.load()
    built = server.config.http_protocol_class(
        config=server.config, server_state=server.server_state, app_state={}
    )  # type: ignore[call-arg] # the rest is given by the server
    transport = Transport()
    protocol = cast("BoundedProtocol", built)
    protocol.connection_made(transport)
    return protocol, transport


async def two_turns() -> None:
    """One in which it is taken, one in which the answer is sent."""
    for _ in range(2):
        await asyncio.sleep(0)


async def test_a_request_is_taken_and_answered_in_one_piece() -> None:
    application = Application()
    protocol, transport = connected(application)
    protocol.data_received(request("/webhooks/it", b"whole"))
    await two_turns()
    assert application.handled == [b"whole"]
    (written,) = transport.written
    assert written.endswith(b"\r\n\r\nwhole")
    protocol.connection_lost(None)


async def test_nothing_is_written_to_a_sender_that_left() -> None:
    application = Application()
    protocol, transport = connected(application)
    protocol.data_received(request("/webhooks/it", b"whole"))
    protocol.connection_lost(None)
    await two_turns()
    assert application.handled == [b"whole"]
    assert transport.written == []


async def test_what_is_written_in_a_turn_is_sent_in_one_piece_and_in_order() -> None:
    transport = Transport()
    buffered = BufferedTransport(transport, flush_queue())
    buffered.write(b"head, ")
    buffered.write(b"body; ")
    buffered.write(b"the next")
    assert transport.written == []
    await asyncio.sleep(0)
    assert transport.written == [b"head, body; the next"]
    buffered.write(b"later")
    await asyncio.sleep(0)
    assert transport.written[1:] == [b"later"]


async def test_what_was_written_is_sent_before_the_end() -> None:
    transport = Transport()
    buffered = BufferedTransport(transport, flush_queue())
    buffered.write(b"the last")
    buffered.close()
    assert (transport.written, transport.is_closed) == ([b"the last"], True)
    await asyncio.sleep(0)
    assert transport.written == [b"the last"]


async def test_nothing_is_sent_on_a_connection_that_was_lost_meanwhile() -> None:
    transport = Transport()
    buffered = BufferedTransport(transport, flush_queue())
    buffered.write(b"too late")
    transport.is_closed = True
    await asyncio.sleep(0)
    assert transport.written == []


async def test_a_connection_that_cannot_be_written_to_does_not_hold_up_the_others() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
    flushes, broken, whole = flush_queue(), Broken(), Transport()
    for transport in (broken, whole):
        BufferedTransport(transport, flushes).write(b"an answer")
    await two_turns()
    assert whole.written == [b"an answer"]


def test_an_answer_never_has_a_line_break_in_a_header() -> None:
    response = Response(200, b"", [(b"x-echo", b"a\r\nset-cookie: b")])
    with pytest.raises(ValueError, match="control characters"):
        response.to_bytes([], keep_alive=True)


def test_an_answer_on_the_wire() -> None:
    sent = Response(202, b"{}").to_bytes([(b"date", b"today")], keep_alive=True)
    head, _, body = sent.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 202 Accepted",
        b"content-type: application/json",
        b"content-length: 2",
        b"cache-control: no-store",
        b"x-content-type-options: nosniff",
        b"date: today",
    ]
    assert (
        Response(204, b"").to_bytes([], keep_alive=True).startswith(b"HTTP/1.1 204 No Content\r\n")
    )
    assert b"content-length" not in Response(204, b"").to_bytes([], keep_alive=True)


@pytest.mark.parametrize("headers", [[], [(b"connection", b"close")]])
def test_a_last_answer_says_so_once(headers: list[tuple[bytes, bytes]]) -> None:
    sent = Response(413, b"{}", headers).to_bytes([], keep_alive=False)
    assert sent.count(b"connection: close\r\n") == 1
