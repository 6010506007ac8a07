"""Connections: requests take turns, each response in one write and in order."""

import asyncio

import pytest

from onceward.http.responses import Response
from onceward.http.server.server import Server
from onceward.settings import Settings
from tests.connections import (
    Application,
    BrokenTransport,
    Transport,
    bodies_of,
    chunked_head,
    connect,
    iterations,
    webhook,
)


async def test_a_complete_request_is_answered_in_one_write() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"complete"))
    await iterations(2)
    assert application.bodies == [b"complete"]
    (write,) = transport.writes
    assert write.endswith(b"\r\n\r\ncomplete")
    connection.connection_lost(None)


@pytest.mark.parametrize("size", [1, 7, 50])
async def test_a_request_in_small_reads_is_received_without_a_task(size: int) -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    data = webhook(b"in small reads")
    for start in range(0, len(data), size):
        connection.data_received(data[start : start + size])
    await iterations(2)
    assert bodies_of(transport) == [b"in small reads"]
    connection.connection_lost(None)


async def test_nothing_is_written_after_a_disconnect() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"complete"))
    await iterations(2)
    connection.connection_lost(None)
    application.held[0].respond(Response(202, b"late"))
    await iterations(2)
    assert application.disconnected == 1
    assert transport.writes == []


async def test_pipelined_requests_are_served_one_at_a_time_and_in_order() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    sent = [b"one", b"two", b"three"]
    connection.data_received(b"".join(map(webhook, sent)))
    for number, body in enumerate(sent):
        await iterations(3)
        assert application.bodies == sent[: number + 1]
        application.held[number].respond(Response(202, body))
    await iterations(3)
    assert bodies_of(transport) == sent
    connection.connection_lost(None)


async def test_reading_stops_while_a_response_is_owed_and_more_has_arrived() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"owed"))
    await iterations(2)
    assert transport.is_reading()  # a disconnect must be noticed
    connection.data_received(webhook(b"next"))
    assert not transport.is_reading()
    application.held[0].respond(Response(202, b"owed"))
    await iterations(3)
    assert transport.is_reading()
    assert application.bodies == [b"owed", b"next"]
    connection.connection_lost(None)


async def test_a_flood_is_parsed_in_small_parts() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"first") + b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 10_000)
    await iterations(3)
    assert len(connection._parser.requests) < 200  # what is held in memory
    connection.connection_lost(None)


async def test_a_client_that_reads_no_responses_gets_no_more_of_them() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.pause_writing()
    connection.data_received(webhook(b"first"))
    await iterations(3)
    assert application.bodies == []
    connection.resume_writing()
    await iterations(3)
    assert bodies_of(transport) == [b"first"]
    connection.connection_lost(None)


async def test_a_response_before_the_body_does_not_affect_the_next_request(
    subtests: pytest.Subtests,
) -> None:
    for size in (1, 20, 150, 1_000_000):
        with subtests.test(size=size):
            application, transport = Application(refuses=True), Transport()
            connection = connect(application, transport)
            data = webhook(b"discarded") * 3
            for start in range(0, len(data), size):
                connection.data_received(data[start : start + size])
            await iterations(10)
            assert bodies_of(transport) == [b"refused"] * 3
            assert (application.bodies, transport.is_closed) == ([], False)
            connection.connection_lost(None)


async def test_a_response_before_the_end_of_the_chunks_is_the_last_one() -> None:
    """What is wrong with a later chunk would be the answer to another sender of the proxy."""
    application, transport = Application(refuses=True), Transport()
    connection = connect(application, transport)
    connection.data_received(chunked_head() + b"1\r\na\r\n")
    await iterations(3)
    connection.data_received(b"not a chunk")
    await iterations(3)
    assert bodies_of(transport) == [b"refused"]
    assert b"connection: close" in transport.writes[0]
    connection.connection_lost(None)


async def test_pipelined_refusals_do_not_hold_up_other_callbacks() -> None:
    application, transport = Application(refuses=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"") * 50)
    assert len(connection._parser.requests) > 10  # all but the first wait for their turns
    await iterations(60)
    assert bodies_of(transport) == [b"refused"] * 50
    connection.connection_lost(None)


async def test_bad_bytes_do_not_change_the_response_before_them() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"good") + b"\x00garbage\r\n\r\n")
    await iterations(2)
    application.held[0].respond(Response(202, b"good"))
    await iterations(3)
    first, second = b"".join(transport.writes).split(b"HTTP/1.1 ")[1:]
    assert (first[:3], second[:3]) == (b"202", b"400")
    assert transport.has_eof
    connection.connection_lost(None)


async def test_a_half_closed_client_gets_its_responses() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"one") + webhook(b"two"))
    await iterations(2)
    assert connection.eof_received()
    for number, body in enumerate((b"one", b"two")):
        application.held[number].respond(Response(202, body))
        await iterations(3)
    assert bodies_of(transport) == [b"one", b"two"]
    assert transport.is_closed
    connection.connection_lost(None)


async def test_a_response_is_sent_even_if_the_client_half_closes_at_that_moment() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"one"))
    await iterations(2)
    application.held[0].respond(Response(202, b"one"))
    if not connection.eof_received():  # then asyncio closes the transport
        transport.close()
    await iterations(2)
    assert bodies_of(transport) == [b"one"]
    connection.connection_lost(None)


async def test_the_part_of_a_request_before_a_half_close_is_dropped() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"one") + webhook(b"incomplete")[:-1])
    await iterations(2)
    assert connection.eof_received()
    application.held[0].respond(Response(202, b"one"))
    await iterations(4)
    assert (bodies_of(transport), application.bodies) == ([b"one"], [b"one"])
    assert transport.is_closed
    connection.connection_lost(None)


async def test_a_server_that_stops_serves_the_requests_that_have_arrived() -> None:
    application, transport = Application(holds=True), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"one") + webhook(b"two"))
    await iterations(2)
    application.held[0].respond(Response(202, b"one"))
    connection.shutdown()
    await iterations(3)
    application.held[1].respond(Response(202, b"two"))
    await iterations(3)
    assert bodies_of(transport) == [b"one", b"two"]
    assert transport.is_closed
    connection.connection_lost(None)


async def test_a_blank_line_after_a_request_does_not_count_as_a_slow_one() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"one") + b"\r\n")
    await iterations(3)
    connection.data_received(b"\r\n")
    connection.check_deadlines(asyncio.get_running_loop().time() + 11)
    assert bodies_of(transport) == [b"one"]
    connection.check_deadlines(asyncio.get_running_loop().time() + 76)
    assert transport.is_closed
    connection.connection_lost(None)


async def test_a_half_closed_client_with_an_incomplete_request_is_dropped() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.data_received(webhook(b"incomplete")[:-1])
    assert not connection.eof_received()
    connection.connection_lost(None)
    assert (application.bodies, application.disconnected) == ([], 1)


UPGRADE = webhook(b"hello", connection="Upgrade, HTTP2-Settings", upgrade="h2c")


async def test_an_upgrade_offer_is_ignored_wherever_it_is_cut(subtests: pytest.Subtests) -> None:
    for cut in range(1, len(UPGRADE)):
        with subtests.test(cut=cut):
            application, transport = Application(), Transport()
            connection = connect(application, transport)
            for data in (UPGRADE[:cut], UPGRADE[cut:], webhook(b"next")):
                connection.data_received(data)
                await iterations(3)
            assert bodies_of(transport) == [b"hello", b"next"]
            connection.connection_lost(None)


async def test_an_upgrade_offer_with_a_chunked_body_is_ignored() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    head = chunked_head(connection="upgrade", upgrade="websocket")
    connection.data_received(head + b"5\r\nhello\r\n0\r\n\r\n" + webhook(b"next"))
    await iterations(6)
    assert bodies_of(transport) == [b"hello", b"next"]
    connection.connection_lost(None)


async def test_all_data_of_an_iteration_is_sent_in_one_write_and_in_order() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    for data in (b"head, ", b"body; ", b"the next"):
        connection.write(data)
    assert transport.writes == []
    await iterations(1)
    assert transport.writes == [b"head, body; the next"]
    connection.write(b"later")
    await iterations(1)
    assert transport.writes[1:] == [b"later"]
    connection.connection_lost(None)


async def test_nothing_is_flushed_to_a_closing_connection() -> None:
    application, transport = Application(), Transport()
    connection = connect(application, transport)
    connection.write(b"too late")
    transport.is_closed = True
    await iterations(1)
    assert transport.writes == []
    connection.connection_lost(None)


async def test_a_broken_connection_does_not_block_the_flush_of_others() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
    application, broken, working = Application(), BrokenTransport(), Transport()
    server = Server(application, Settings())
    connections = [connect(application, each, server) for each in (broken, working)]
    for connection in connections:
        connection.write(b"a response")
    await iterations(2)
    assert working.writes == [b"a response"]
    for connection in connections:
        connection.connection_lost(None)
