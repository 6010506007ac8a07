"""An app that events are forwarded to: it keeps every request, and has a response for each."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from onceward import Inbox

SECRET = f"whsec_{base64.b64encode(b'a secret of 24 bytes ...').decode()}"
OTHER_SECRET = f"whsec_{base64.b64encode(b'another one of 26 bytes ..').decode()}"

Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes a response, in any way."""


def response(status: int, *headers: str, body: bytes = b"") -> bytes:
    """Return a response as bytes."""
    lines = [f"HTTP/1.1 {status} Any", *headers, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


OK = response(200, body=b"thanks")


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    request_line: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """Its ``webhook-id``."""
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        """Its decoded body."""
        return msgspec.json.decode(self.body)


@dataclass
class Receiver:
    """The app. Responses are used in turn, and the last one for all further requests."""

    responses: list[bytes | Respond] = field(default_factory=lambda: [OK])
    requests: list[Received] = field(default_factory=list)
    server_names: list[str | None] = field(default_factory=list)
    """The name that each connection asked for, in TLS."""
    connections: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        """Where it listens, with a query that nobody must see."""
        return f"http://127.0.0.1:{self.port}/hooks?token=hidden"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        try:
            self.requests.append(await read_request(reader))
            at = min(len(self.requests), len(self.responses)) - 1
            answer = self.responses[at]
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Received:
    """Read one request with a Content-Length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:-2])
    body = await reader.readexactly(int(headers["content-length"]))
    return Received(head[0], headers, body)


@asynccontextmanager
async def receiving(
    *responses: bytes | Respond, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """Run an app on a free port of this machine."""
    receiver = Receiver(list(responses) or [OK])
    if tls is not None:
        tls.sni_callback = lambda _, name, __: receiver.server_names.append(name)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


def forwarding_inbox(receiver: Receiver, *patterns: str, **options: Any) -> Inbox:
    """Return an inbox that forwards to an app."""
    inbox = Inbox()
    options = {"to": receiver.url, "secret": SECRET, "allow_private": True, **options}
    inbox.forward(*patterns or ("order.*",), **options)
    return inbox


async def close(_: asyncio.StreamWriter) -> None:
    """Close the connection without a response."""


async def say_nothing(writer: asyncio.StreamWriter) -> None:
    """Keep the connection open, until the client closes it."""
    with_end = asyncio.create_task(writer.wait_closed())
    await asyncio.wait([with_end], timeout=10)
    with_end.cancel()
