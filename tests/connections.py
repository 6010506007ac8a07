"""Connections without a network: an application that echoes, and a transport that collects."""

import asyncio

from onceward.http.responses import Receive, Respond, Response, Scope, Send
from onceward.http.server.connection import Connection
from onceward.http.server.exchange import Application as Served
from onceward.http.server.server import Server
from onceward.settings import Settings
from onceward.sources.request import Headers
from tests.integration.running import request


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Reception:
    """Collects one body, and echoes it."""

    is_full = False

    def __init__(self, application: "Application", respond: Respond) -> None:
        self.application = application
        self.respond = respond
        self.body = b""
        if application.refuses:
            respond(Response(200, b"refused"))

    def add(self, chunk: bytes) -> None:
        self.application.parts += 1
        self.body += chunk

    def complete(self) -> None:
        self.application.bodies.append(self.body)
        if self.application.refuses:
            return
        if self.application.holds:
            self.application.held.append(self)
        else:
            self.respond(Response(202, self.body))

    def disconnect(self) -> None:
        self.application.disconnected += 1


class Application:
    """Handles POST directly, and everything else in a task.

    With `holds`, it does not respond; with `refuses`, it responds before the body.
    """

    def __init__(self, *, holds: bool = False, refuses: bool = False) -> None:
        self.holds = holds
        self.refuses = refuses
        self.held: list[Reception] = []
        self.bodies: list[bytes] = []
        self.parts = 0
        self.disconnected = 0

    def start_directly(self, _: Scope, __: Headers, respond: Respond) -> Reception:
        return Reception(self, respond)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Response(200, scope["raw_path"]).send(send)


class Transport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = self.is_aborted = self.has_eof = False
        self._is_reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True


class BrokenTransport(Transport):
    """Raises on every write."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("the connection is lost")


def connect(application: Served, transport: Transport, server: Server | None = None) -> Connection:
    server = server or Server(application, Settings())
    if not server.config.loaded:
        server.config.load()
    built = server.config.http_protocol_class(
        config=server.config, server_state=server.server_state, app_state={}
    )  # type: ignore[call-arg] # the partial supplies the rest
    assert isinstance(built, Connection)
    built.connection_made(transport)
    return built


def webhook(body: bytes, **headers: str) -> bytes:
    return request("/webhooks/partner", body, headers=headers)


def chunked_head(**headers: str) -> bytes:
    head = webhook(b"", **headers, **{"transfer-encoding": "chunked"})
    return head.replace(b"content-length: 0\r\n", b"")


def bodies_of(transport: Transport) -> list[bytes]:
    """Return the bodies of all responses, each of which must be a success."""
    parts = b"".join(transport.writes).split(b"HTTP/1.1 ")[1:]
    assert {part[:3] for part in parts} <= {b"202", b"200"}
    return [part.partition(b"\r\n\r\n")[2] for part in parts]
