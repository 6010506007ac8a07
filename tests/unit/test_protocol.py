"""Direct requests: a few per loop iteration, each response in one write and in order."""

import asyncio
import itertools
from typing import cast

import pytest

from onceward.http.responses import Receive, Respond, Response, Scope, Send
from onceward.http.server.protocol import BoundedProtocol, DirectQueue, FlushQueue
from onceward.http.server.server import REQUESTS_PER_TICK, Server
from onceward.http.server.writes import BufferedTransport, TickQueue
from onceward.settings import Settings
from tests.integration.running import request

MANY = 5 * REQUESTS_PER_TICK + 1


class Application:
    """Collects the bodies that it handles, and raises for an empty one."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def can_handle_directly(self, path: str) -> bool:
        return bool(path)

    def handle_directly(self, _: Scope, body: bytes, respond: Respond) -> None:
        self.bodies.append(body)
        if not body:
            raise RuntimeError("the response cannot be sent")
        respond(Response(202, body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


def request_queue(application: Application) -> DirectQueue:
    return TickQueue(application.handle_directly, limit=REQUESTS_PER_TICK)


async def test_other_callbacks_run_between_the_requests_of_a_burst() -> None:
    application, responses = Application(), list[Response]()
    requests = request_queue(application)
    handled: list[int] = []

    def count() -> None:
        handled.append(len(application.bodies))
        if handled[-1] < MANY:
            asyncio.get_running_loop().call_soon(count)

    bodies = [b"%d" % number for number in range(MANY)]
    for body in bodies:
        requests.add({}, body, responses.append)
    count()
    for _ in range(MANY):
        await asyncio.sleep(0)

    assert application.bodies == bodies
    per_iteration = [later - earlier for earlier, later in itertools.pairwise(handled)]
    assert max(per_iteration) == REQUESTS_PER_TICK


async def test_a_lone_request_is_handled_in_the_next_iteration() -> None:
    application = Application()
    request_queue(application).add({}, b"lone", lambda _: None)
    await asyncio.sleep(0)
    assert application.bodies == [b"lone"]


async def test_a_failing_request_does_not_block_the_ones_behind_it() -> None:
    application, responses = Application(), list[Response]()
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    requests = request_queue(application)
    for body in (b"before", b"", b"after", b"", b"last"):
        requests.add({}, body, responses.append)
    for _ in range(10):
        await asyncio.sleep(0)
    requests.add({}, b"later", responses.append)
    await asyncio.sleep(0)

    assert [response.body for response in responses] == [b"before", b"after", b"last", b"later"]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]


class Transport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class BrokenTransport(Transport):
    """Raises on every write."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("the connection is lost")


def flush_queue() -> FlushQueue:
    return TickQueue(BufferedTransport.flush)


def connect(application: Application) -> tuple[BoundedProtocol, Transport]:
    server = Server(application, Settings())
    server.config.load()
    built = server.config.http_protocol_class(
        config=server.config, server_state=server.server_state, app_state={}
    )  # type: ignore[call-arg] # the partial supplies the rest
    transport = Transport()
    protocol = cast("BoundedProtocol", built)
    protocol.connection_made(transport)
    return protocol, transport


async def handle_and_flush() -> None:
    """Wait one iteration for the handling and one for the flush."""
    for _ in range(2):
        await asyncio.sleep(0)


async def test_a_complete_request_is_handled_directly_and_answered_in_one_write() -> None:
    application = Application()
    protocol, transport = connect(application)
    protocol.data_received(request("/webhooks/partner", b"complete"))
    await handle_and_flush()
    assert application.bodies == [b"complete"]
    (write,) = transport.writes
    assert write.endswith(b"\r\n\r\ncomplete")
    protocol.connection_lost(None)


async def test_nothing_is_written_after_a_disconnect() -> None:
    application = Application()
    protocol, transport = connect(application)
    protocol.data_received(request("/webhooks/partner", b"complete"))
    protocol.connection_lost(None)
    await handle_and_flush()
    assert application.bodies == [b"complete"]
    assert transport.writes == []


async def test_all_data_of_an_iteration_is_sent_in_one_write_and_in_order() -> None:
    transport = Transport()
    buffered = BufferedTransport(transport, flush_queue())
    buffered.write(b"head, ")
    buffered.write(b"body; ")
    buffered.write(b"the next")
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"head, body; the next"]
    buffered.write(b"later")
    await asyncio.sleep(0)
    assert transport.writes[1:] == [b"later"]


async def test_closing_flushes_first() -> None:
    transport = Transport()
    buffered = BufferedTransport(transport, flush_queue())
    buffered.write(b"the last")
    buffered.close()
    assert (transport.writes, transport.is_closed) == ([b"the last"], True)
    await asyncio.sleep(0)
    assert transport.writes == [b"the last"]


async def test_nothing_is_flushed_to_a_closing_connection() -> None:
    transport = Transport()
    buffered = BufferedTransport(transport, flush_queue())
    buffered.write(b"too late")
    transport.is_closed = True
    await asyncio.sleep(0)
    assert transport.writes == []


async def test_a_broken_connection_does_not_block_the_flush_of_others() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
    flushes, broken, working = flush_queue(), BrokenTransport(), Transport()
    for transport in (broken, working):
        BufferedTransport(transport, flushes).write(b"a response")
    await handle_and_flush()
    assert working.writes == [b"a response"]


def test_a_response_header_cannot_contain_a_line_break() -> None:
    response = Response(200, b"", [(b"x-echo", b"a\r\nset-cookie: b")])
    with pytest.raises(ValueError, match="control characters"):
        response.to_bytes([], keep_alive=True)


def test_a_response_has_its_status_line_headers_and_body_in_order() -> None:
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


def test_a_204_has_no_content_length() -> None:
    sent = Response(204, b"").to_bytes([], keep_alive=True)
    assert sent.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"content-length" not in sent


@pytest.mark.parametrize("headers", [[], [(b"connection", b"close")]])
def test_the_last_response_has_one_connection_close(headers: list[tuple[bytes, bytes]]) -> None:
    sent = Response(413, b"{}", headers).to_bytes([], keep_alive=False)
    assert sent.count(b"connection: close\r\n") == 1
