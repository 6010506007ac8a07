"""The real limit of Python and httptools: parse the request, respond, and do nothing else."""

import asyncio
from typing import Any

import uvloop
from httptools import HttpRequestParser

from bench.contenders.empty_endpoint import RESPONSE_BODY
from bench.contenders.interface import ContenderConfig
from bench.contenders.server import BACKLOG, HOST

_RESPONSE = (
    b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
) % (len(RESPONSE_BODY), RESPONSE_BODY)


class BareProtocol(asyncio.Protocol):
    """A connection that responds to each complete request."""

    def __init__(self) -> None:
        self.data_received = HttpRequestParser(self).feed_data  # type: ignore[method-assign]

    def connection_made(self, transport: Any) -> None:
        """Keep the method that writes: uvloop's transports inherit from none of asyncio's."""
        self._write = transport.write

    def on_message_complete(self) -> None:
        """Respond with 202: the parser calls this after the last byte of a request."""
        self._write(_RESPONSE)


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(BareProtocol, HOST, port, backlog=BACKLOG)
    await server.serve_forever()


class Program:
    """A receiver without a framework, a server or a database."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config

    def serve(self) -> None:
        """Respond until killed."""
        uvloop.run(_serve(self._config.port))

    def received_ids(self) -> set[str]:
        """Return nothing: no event is stored."""
        return set()
