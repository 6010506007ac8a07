"""How connections end: deadlines, refusals, shutdown and clients that close or do not read."""

import asyncio

import pytest

from onceward.http.responses import Response
from onceward.http.server.connection import (
    KEEP_ALIVE_SECONDS,
    LARGE_READ_BYTES,
    LINGER_BYTES,
    LINGER_SECONDS,
)
from onceward.settings import Settings
from tests.connections import (
    Application,
    Transport,
    bodies_of,
    chunked_head,
    connect,
    iterations,
    webhook,
)

TIMEOUT = Settings().body_timeout_seconds
GARBAGE = b"\x00garbage\r\n\r\n"
LAST = (b"connection", b"close")


class Time:
    """The time of the event loop, which a test can advance: timers that are due then run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self.passed = 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self.passed)

    async def advance(self, seconds: float) -> None:
        self.passed += seconds
        await iterations(5)


@pytest.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def end_of(transport: Transport) -> str:
    """Return how far a connection is closed."""
    if transport.is_aborted:
        return "aborted"
    if transport.is_closed:
        return "closed"
    return "half closed" if transport.has_eof else "open"


def statuses(transport: Transport) -> list[bytes]:
    return [part[:3] for part in b"".join(transport.writes).split(b"HTTP/1.1 ")[1:]]


# Deadlines.


async def test_a_request_may_take_the_whole_timeout_after_any_idle_time(time: Time) -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    for _ in range(2):
        data = webhook(b"slow")
        connection.data_received(data[:5])
        await time.advance(TIMEOUT * 0.9)
        connection.data_received(data[5:])
        await iterations(3)
        await time.advance(KEEP_ALIVE_SECONDS * 0.9)
    assert bodies_of(transport) == [b"slow"] * 2
    assert end_of(transport) == "open"
    connection.connection_lost(None)


async def test_no_deadline_runs_while_the_application_owes_the_response(time: Time) -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"owed"))
    await time.advance(10 * KEEP_ALIVE_SECONDS)
    application.held[0].respond(Response(202, b"owed"))
    await time.advance(KEEP_ALIVE_SECONDS * 0.9)
    assert bodies_of(transport) == [b"owed"]
    assert end_of(transport) == "open"
    await time.advance(KEEP_ALIVE_SECONDS * 0.2)
    assert end_of(transport) == "closed"
    connection.connection_lost(None)


async def test_the_time_of_a_pipelined_request_starts_with_its_turn(time: Time) -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"one") + webhook(b"two")[:-1])
    await time.advance(10 * TIMEOUT)
    application.held[0].respond(Response(202, b"one"))
    await time.advance(TIMEOUT * 0.9)
    connection.data_received(b"o")
    await iterations(3)
    application.held[1].respond(Response(202, b"two"))
    await iterations(3)
    assert bodies_of(transport) == [b"one", b"two"]
    connection.connection_lost(None)


@pytest.mark.parametrize("is_closing", [False, True])
async def test_a_client_that_reads_nothing_is_cut_off(time: Time, *, is_closing: bool) -> None:
    transport = Transport()
    connection = connect(Application(), transport)
    if is_closing:
        connection.shutdown()  # the transport closes after the bytes that it still has
    else:
        connection.pause_writing()
    await time.advance(TIMEOUT * 0.9)
    assert end_of(transport) == ("closed" if is_closing else "open")
    await time.advance(TIMEOUT * 0.2)
    assert end_of(transport) == "aborted"
    connection.connection_lost(None)


async def test_a_client_that_reads_again_gets_the_whole_time_again(time: Time) -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.pause_writing()
    await time.advance(TIMEOUT * 0.9)
    connection.resume_writing()
    connection.data_received(webhook(b"read"))
    await time.advance(TIMEOUT * 0.9)
    assert bodies_of(transport) == [b"read"]
    assert end_of(transport) == "open"
    connection.connection_lost(None)


async def test_a_connection_that_is_lost_is_forgotten() -> None:
    connection = connect(Application(), Transport())
    context = connection._context
    assert context._watched == {connection}
    connection.connection_lost(None)
    assert not context._watched


async def test_a_refused_client_is_cut_off_after_a_while(time: Time) -> None:
    transport = Transport()
    connection = connect(Application(), transport)
    connection.data_received(GARBAGE)
    await time.advance(LINGER_SECONDS * 0.8)
    assert end_of(transport) == "half closed"
    await time.advance(LINGER_SECONDS * 0.4)
    assert end_of(transport) == "closed"
    connection.connection_lost(None)


async def test_a_refused_client_that_sends_on_is_cut_off_after_some_bytes() -> None:
    transport = Transport()
    connection = connect(Application(), transport)
    connection.data_received(GARBAGE)
    connection.data_received(b"x" * LINGER_BYTES)
    assert end_of(transport) == "half closed"
    connection.data_received(b"x")
    assert end_of(transport) == "closed"
    assert statuses(transport) == [b"400"]
    connection.connection_lost(None)


# Refusals.


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_request_that_has_its_response_gets_no_second_one(
    time: Time, *, is_late: bool
) -> None:
    transport = Transport()
    connection = connect(Application(refuses=True), transport)
    connection.data_received(webhook(b"xy")[:-1] if is_late else chunked_head() + b"1\r\nx\r\n")
    await iterations(3)
    if is_late:
        await time.advance(TIMEOUT * 1.1)
    else:
        connection.data_received(b"no chunk\r\n")
    await iterations(3)
    assert statuses(transport) == [b"200"]
    assert end_of(transport) == "half closed"
    connection.connection_lost(None)


async def test_nothing_is_read_behind_bad_bytes_until_they_are_refused() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"good") + GARBAGE)
    await iterations(2)
    assert not transport.is_reading()
    application.held[0].respond(Response(202, b"good"))
    await iterations(3)
    assert transport.is_reading()  # to discard it
    assert statuses(transport) == [b"202", b"400"]
    connection.connection_lost(None)


async def test_a_last_response_before_the_body_does_not_reset_the_connection() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"incomplete")[:-1])
    connection.respond(Response(413, b"too large", [LAST]))
    await iterations(2)
    assert end_of(transport) == "half closed"
    connection.connection_lost(None)


async def test_requests_behind_a_last_response_keep_no_connection_open() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"one") + webhook(b"another") * 200)
    await iterations(2)
    application.held[0].respond(Response(202, b"one", [LAST]))
    await iterations(3)
    assert end_of(transport) == "half closed"
    assert not connection.eof_received()
    assert application.bodies == [b"one"]
    connection.connection_lost(None)


# The end of the client, and of the server.


async def test_a_half_closed_client_gets_all_its_responses() -> None:
    sent = [b"request %d" % number for number in range(200)]  # more than is parsed at once
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.data_received(b"".join(map(webhook, sent)))
    assert connection.eof_received()
    await iterations(5 * len(sent))
    assert bodies_of(transport) == sent
    assert end_of(transport) == "closed"
    connection.connection_lost(None)


@pytest.mark.parametrize("count", [2, 3, 200])
async def test_a_server_that_stops_answers_the_requests_that_have_arrived(count: int) -> None:
    transport = Transport()
    connection = connect(Application(refuses=True), transport)
    connection.data_received(webhook(b"") * count)
    connection.shutdown()  # between two requests
    await iterations(5 * count)
    assert bodies_of(transport) == [b"refused"] * count
    assert end_of(transport) == "closed"
    connection.connection_lost(None)


# Large reads.


async def test_other_connections_get_their_turn_after_a_large_read() -> None:
    transport = Transport()
    connection = connect(Application(), transport)
    body = b"x" * (LARGE_READ_BYTES + 1)
    data = webhook(body + b"the rest")
    connection.data_received(data[: -len(b"the rest")])
    assert not transport.is_reading()
    await iterations(1)
    assert transport.is_reading()
    connection.data_received(b"the rest")
    await iterations(2)
    assert bodies_of(transport) == [body + b"the rest"]
    connection.connection_lost(None)
