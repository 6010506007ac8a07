"""What `http/server/` needs of uvicorn: how it builds connections, its state, loop and shutdown.

`make drivers` runs these tests with the oldest and the newest supported version.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from uvicorn.server import ServerState

from onceward.http.responses import Receive, Respond, Response, Scope, Send
from onceward.http.server.connection import Connection
from onceward.http.server.server import Server, listen
from onceward.settings import Settings
from onceward.sources.request import Headers
from support.processes import eventually_async
from tests.integration.running import request

GET = request("/slow", method="GET")


class Application:
    """Responds to a GET when `released` is set, and to no POST directly."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.started = asyncio.Event()

    def start_directly(self, _: Scope, __: Headers, ___: Respond) -> None:
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started.set()
        await self.released.wait()
        await Response(200, scope["path"].encode()).send(send)


@asynccontextmanager
async def serving(
    application: Application, settings: Settings | None = None
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(application, settings or Settings())
    listener = listen("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn sets no event
        await asyncio.sleep(0.01)
    try:
        yield server, listener.getsockname()[1]
    finally:
        application.released.set()
        server.stop()
        await task


async def test_uvicorn_builds_our_connection_and_shares_its_state() -> None:
    application = Application()
    application.released.set()
    async with serving(application) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(5) == b"/slow"
        assert b"\r\ndate: " in head  # from default_headers, which uvicorn renews
        (connection,) = server.server_state.connections
        assert isinstance(connection, Connection)
        assert server.server_state.total_requests == 1
        writer.close()


async def test_a_server_that_stops_closes_idle_connections() -> None:
    application = Application()
    application.released.set()
    async with serving(application) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await reader.readuntil(b"/slow")
        server.stop()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_server_that_stops_sends_the_responses_that_it_owes() -> None:
    application = Application()
    async with serving(application) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await application.started.wait()
        assert len(server.server_state.tasks) == 1
        server.stop()
        await asyncio.sleep(0.1)  # the server has looked for connections to close
        application.released.set()
        response = await asyncio.wait_for(reader.read(), 5)
        assert response.endswith(b"\r\n\r\n/slow")
        assert b"\r\nconnection: close\r\n" in response
        assert not server.server_state.tasks
        writer.close()


async def test_a_request_that_does_not_end_in_time_is_cancelled_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    application = Application()
    async with serving(application, Settings(drain_seconds=1.0)) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await application.started.wait()
        (task,) = server.server_state.tasks
        server.stop()
        await asyncio.wait_for(asyncio.wait([task]), 5)
        assert task.cancelled()
        assert not application.released.is_set()
        assert b" 500 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
    (record,) = caplog.records
    assert record.getMessage().startswith("1 requests did not end within drain_seconds")


async def test_the_date_of_responses_is_renewed() -> None:
    application = Application()
    application.released.set()
    async with serving(application) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def read_date() -> bytes:
            writer.write(GET)
            lines = (await reader.readuntil(b"/slow")).splitlines()
            (date,) = [line for line in lines if line.startswith(b"date: ")]
            return date

        first = await read_date()

        async def is_renewed() -> bool:
            return await read_date() != first

        await eventually_async(is_renewed, "the date is renewed")
        writer.close()


async def test_a_server_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.http.server.server._DATE_SECONDS", 3600.0)
    async with asyncio.timeout(10), serving(Application()):
        await asyncio.sleep(0.05)  # the server waits for the next date


class DirectReception:
    """A request that is received without a task, until `respond` is called."""

    is_full = False

    def __init__(self, respond: Respond) -> None:
        self.respond = respond

    def add(self, chunk: bytes) -> None: ...

    def complete(self) -> None: ...

    def disconnect(self) -> None: ...


class DirectApplication(Application):
    """Receives every request without a task."""

    received: DirectReception

    def start_directly(  # type: ignore[override] # the others receive nothing directly
        self, _: Scope, __: Headers, respond: Respond
    ) -> DirectReception:
        self.received = DirectReception(respond)
        self.started.set()
        return self.received


async def test_a_server_that_stops_waits_for_a_request_that_has_no_task() -> None:
    application = DirectApplication()
    server, listener = Server(application, Settings()), listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    end = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("/slow"))
    await application.started.wait()
    server.stop()
    await asyncio.wait([end], timeout=0.1)
    assert not end.done()
    application.received.respond(Response(202, b"recorded"))
    assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"\r\n\r\nrecorded")
    writer.close()
    await asyncio.wait_for(end, 5)


async def test_a_server_that_stops_waits_for_a_request_whose_client_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    application = Application()
    async with serving(application) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await application.started.wait()
        (task,) = server.server_state.tasks
        reset = (1).to_bytes(4, "little") + bytes(4)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        server.stop()
        await asyncio.sleep(0.1)  # the server has looked for connections
        assert not server.server_state.connections
        application.released.set()
        await asyncio.wait_for(asyncio.wait([task]), 5)
        assert not task.cancelled()
    assert caplog.records == []


async def test_requests_in_progress_get_a_second_even_if_jobs_get_none() -> None:
    application = Application()
    async with serving(application, Settings(drain_seconds=0)) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await application.started.wait()
        server.stop()
        await asyncio.sleep(0.1)
        application.released.set()
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


async def test_a_server_that_stops_accepts_no_more_connections() -> None:
    application = Application()
    async with serving(application) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await application.started.wait()
        server.stop()
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()


async def test_a_server_that_stops_serves_a_connection_that_it_has_just_accepted() -> None:
    class LateServer(Server):
        async def main_loop(self) -> None:
            await super().main_loop()
            client.connect(listener.getsockname())
            client.sendall(GET)
            for _ in range(3):  # the event loop has accepted it, and not yet told the connection
                await asyncio.sleep(0)

    application, client, listener = Application(), socket.socket(), listen("127.0.0.1", 0)
    application.released.set()
    server = LateServer(application, Settings())
    server.stop()
    server.should_exit = False  # uvicorn would not begin
    with client:
        await server.serve(sockets=[listener])
        client.settimeout(0)
        assert client.recv(10_000).endswith(b"\r\n\r\n/slow")


def test_the_state_has_what_a_connection_uses(subtests: pytest.Subtests) -> None:
    for name in ("connections", "tasks", "default_headers", "total_requests"):
        with subtests.test(name=name):
            assert hasattr(ServerState(), name)
