"""Requests are taken a few in each turn of the loop, and answered in one piece and in order."""

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

import pytest

from onceward.http.responses import Answer, Receive, Scope, Send
from onceward.http.server.protocol import BoundedProtocol
from onceward.http.server.server import Server
from onceward.http.server.writes import TAKEN_IN_A_TURN, BufferedTransport, Intake, Outlet
from onceward.settings import Settings
from tests.integration.running import request

MANY = 5 * TAKEN_IN_A_TURN + 1


class Application:
    """Notes what it takes, and fails for what is empty."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def takes(self, path: str) -> bool:
        return bool(path)

    def take(self, _: Scope, body: bytes, give: Callable[[Answer], None]) -> None:
        self.taken.append(body)
        if not body:
            raise RuntimeError("an answer could not be sent")
        give(Answer(202, body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


async def test_others_have_their_turn_between() -> None:
    application, given = Application(), list[Answer]()
    intake = Intake(application)
    seen: list[int] = []

    def look() -> None:
        seen.append(len(application.taken))
        if seen[-1] < MANY:
            asyncio.get_running_loop().call_soon(look)

    bodies = [b"%d" % number for number in range(MANY)]
    for body in bodies:
        intake.add({}, body, given.append)
    look()
    for _ in range(MANY):
        await asyncio.sleep(0)

    assert application.taken == bodies
    steps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert max(steps) == TAKEN_IN_A_TURN


async def test_one_is_taken_in_the_same_turn() -> None:
    application = Application()
    Intake(application).add({}, b"lone", lambda _: None)
    await asyncio.sleep(0)
    assert application.taken == [b"lone"]


async def test_what_goes_wrong_with_one_does_not_hold_up_the_next() -> None:
    application, given = Application(), list[Answer]()
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    intake = Intake(application)
    for body in (b"before", b"", b"after", b"", b"last"):
        intake.add({}, body, given.append)
    for _ in range(10):
        await asyncio.sleep(0)
    intake.add({}, b"later", given.append)
    await asyncio.sleep(0)

    assert [answer.body for answer in given] == [b"before", b"after", b"last", b"later"]
    assert [type(error) for error in told] == [RuntimeError, RuntimeError]


class Transport(asyncio.Transport):
    """Notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.secret_encoding: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.secret_encoding.append(bytes(data))

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
    verifies = server.config.http_protocol_class(
        config=server.config, server_state=server.server_state, app_state={}
    )  # type: ignore[call-arg] # the rest is given by the server
    transport = Transport()
    protocol = cast("BoundedProtocol", verifies)
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
    assert application.taken == [b"whole"]
    (secret_encoding,) = transport.secret_encoding
    assert secret_encoding.endswith(b"\r\n\r\nwhole")
    protocol.connection_lost(None)


async def test_nothing_is_written_to_a_sender_that_left() -> None:
    application = Application()
    protocol, transport = connected(application)
    protocol.data_received(request("/webhooks/it", b"whole"))
    protocol.connection_lost(None)
    await two_turns()
    assert application.taken == [b"whole"]
    assert transport.secret_encoding == []


async def test_what_is_written_in_a_turn_is_sent_in_one_piece_and_in_order() -> None:
    transport = Transport()
    corked = BufferedTransport(transport, Outlet())
    corked.write(b"head, ")
    corked.write(b"body; ")
    corked.write(b"the next")
    assert transport.secret_encoding == []
    await asyncio.sleep(0)
    assert transport.secret_encoding == [b"head, body; the next"]
    corked.write(b"later")
    await asyncio.sleep(0)
    assert transport.secret_encoding[1:] == [b"later"]


async def test_what_was_written_is_sent_before_the_end() -> None:
    transport = Transport()
    corked = BufferedTransport(transport, Outlet())
    corked.write(b"the last")
    corked.close()
    assert (transport.secret_encoding, transport.is_closed) == ([b"the last"], True)
    await asyncio.sleep(0)
    assert transport.secret_encoding == [b"the last"]


async def test_nothing_is_sent_on_a_connection_that_was_lost_meanwhile() -> None:
    transport = Transport()
    corked = BufferedTransport(transport, Outlet())
    corked.write(b"too late")
    transport.is_closed = True
    await asyncio.sleep(0)
    assert transport.secret_encoding == []


async def test_a_connection_that_cannot_be_written_to_does_not_hold_up_the_others() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
    outlet, broken, whole = Outlet(), Broken(), Transport()
    for transport in (broken, whole):
        BufferedTransport(transport, outlet).write(b"an answer")
    await two_turns()
    assert whole.secret_encoding == [b"an answer"]


def test_an_answer_never_has_a_line_break_in_a_header() -> None:
    answer = Answer(200, b"", [(b"x-echo", b"a\r\nset-cookie: b")])
    with pytest.raises(ValueError, match="control characters"):
        answer.on_wire([], keep_alive=True)


def test_an_answer_on_the_wire() -> None:
    on_wire = Answer(202, b"{}").on_wire([(b"date", b"today")], keep_alive=True)
    head, _, body = on_wire.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 202 Accepted",
        b"content-type: application/json",
        b"content-length: 2",
        b"cache-control: no-store",
        b"x-content-type-options: nosniff",
        b"date: today",
    ]
    assert Answer(204, b"").on_wire([], keep_alive=True).startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"content-length" not in Answer(204, b"").on_wire([], keep_alive=True)


@pytest.mark.parametrize("headers", [[], [(b"connection", b"close")]])
def test_a_last_answer_says_so_once(headers: list[tuple[bytes, bytes]]) -> None:
    on_wire = Answer(413, b"{}", headers).on_wire([], keep_alive=False)
    assert on_wire.count(b"connection: close\r\n") == 1
