"""Clients that send too much, too little or the wrong thing to a connection."""

import pytest

from onceward.http.server.limits import MAX_REFUSED
from onceward.http.server.server import Server
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


async def test_trailers_are_discarded_and_limited() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.data_received(chunked_head() + b"2\r\nok\r\n0\r\nx-forwarded-host: a\r\n\r\n")
    await iterations(3)
    assert bodies_of(transport) == [b"ok"]
    connection.data_received(chunked_head() + b"2\r\nok\r\n0\r\n")
    connection.data_received(b"x: y\r\n" * Settings().max_headers)
    assert not transport.has_eof
    connection.data_received(b"x: y\r\n" * 2)  # the parser reports a header when the next begins
    assert transport.writes[-1].startswith(b"HTTP/1.1 431 ")
    assert application.disconnected == 1
    connection.connection_lost(None)


@pytest.mark.parametrize(
    "start",
    [b"GET / HTTP/1.1\r\nx: ", chunked_head() + b"2\r\nok\r\n0\r\nx: ", chunked_head() + b"1;"],
)
async def test_an_endless_head_trailer_or_extension_is_refused(start: bytes) -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.data_received(start)
    sent = 0
    while not transport.has_eof:
        connection.data_received(b"y" * 1000)
        sent += 1000
    assert sent <= Settings().max_header_bytes + 1000
    assert transport.writes[-1].startswith(b"HTTP/1.1 431 ")
    connection.connection_lost(None)


async def test_a_head_with_too_many_headers_is_refused_before_its_end() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.data_received(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (Settings().max_headers + 2))
    await iterations(1)
    assert transport.writes[-1].startswith(b"HTTP/1.1 431 ")
    connection.connection_lost(None)


async def test_tiny_chunks_are_joined_and_do_not_hold_up_other_callbacks() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(chunked_head() + b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n")
    added = 0
    for count in range(1, 100):
        await iterations(1)
        if application.bodies:
            break
        added = count
    assert added > 10  # parsed over many iterations
    assert application.bodies == [b"x" * 40_000]
    assert application.parts < 100
    connection.connection_lost(None)


async def test_permission_to_send_a_body(subtests: pytest.Subtests) -> None:
    for version, expect, is_given in [
        (b"1.1", "100-continue", True),
        (b"1.1", "100-Continue", True),
        (b"1.0", "100-continue", False),
        (b"1.1", "200-ok", False),
    ]:
        with subtests.test(version=version, expect=expect):
            application, transport = Application(), Transport()
            connection = connect(application, transport)
            data = webhook(b"body", expect=expect).replace(b"HTTP/1.1", b"HTTP/" + version)
            connection.data_received(data[:-4])
            await iterations(2)
            assert transport.writes == ([b"HTTP/1.1 100 Continue\r\n\r\n"] if is_given else [])
            connection.data_received(data[-4:])
            await iterations(3)
            assert transport.writes[-1].endswith(b"\r\n\r\nbody")
            connection.connection_lost(None)


async def test_a_response_without_permission_to_send_the_body_is_the_last() -> None:
    application, transport = Application(refuses=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"body", expect="100-continue")[:-4])
    await iterations(2)
    assert b"\r\nconnection: close\r\n" in transport.writes[0]
    assert transport.has_eof
    connection.connection_lost(None)


async def test_refused_connections_get_a_response_unless_there_are_too_many() -> None:
    application = Application()
    server = Server(application, Settings(max_connections=1))
    transports = [Transport() for _ in range(MAX_REFUSED + 3)]
    connections = [connect(application, transport, server) for transport in transports]
    await iterations(2)
    assert [bool(transport.writes) for transport in transports] == [
        False,
        *[True] * MAX_REFUSED,
        False,
        False,
    ]
    for connection in connections:
        connection.connection_lost(None)
