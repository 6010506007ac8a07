"""What `http/server/connection.py` needs of uvicorn: its constructor, `server_state`, `shutdown`.

`make drivers` runs these tests with the oldest and the newest supported version.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from uvicorn.server import ServerState

from onceward.http.responses import Receive, Respond, Response, Scope, Send
from onceward.http.server.connection import Connection
from onceward.http.server.server import Server, listen
from onceward.settings import Settings
from onceward.sources.request import Headers
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
async def serving(application: Application) -> AsyncIterator[tuple[Server, int]]:
    server = Server(application, Settings())
    listener = listen("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn sets no event
        await asyncio.sleep(0.01)
    try:
        yield server, listener.getsockname()[1]
    finally:
        application.released.set()
        server.should_exit = True
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
        server.should_exit = True
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_server_that_stops_sends_the_responses_that_it_owes() -> None:
    application = Application()
    async with serving(application) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await application.started.wait()
        assert len(server.server_state.tasks) == 1
        server.should_exit = True
        await asyncio.sleep(0.3)  # uvicorn looks at should_exit ten times a second
        application.released.set()
        response = await asyncio.wait_for(reader.read(), 5)
        assert response.endswith(b"\r\n\r\n/slow")
        assert b"\r\nconnection: close\r\n" in response
        assert not server.server_state.tasks
        writer.close()


def test_the_state_has_what_a_connection_uses(subtests: pytest.Subtests) -> None:
    for name in ("connections", "tasks", "default_headers", "total_requests"):
        with subtests.test(name=name):
            assert hasattr(ServerState(), name)
