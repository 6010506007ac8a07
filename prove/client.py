"""A minimal HTTP client over raw keep-alive connections, which fails over between receivers."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import cast

Address = tuple[str, int]
Response = tuple[int, bytes]

NO_RESPONSE: Response = (0, b"")
RESPONSE_SECONDS = 5.0

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._response: asyncio.Future[Response] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Resolve the request in flight without a response."""
        self.is_open = False
        self._resolve(NO_RESPONSE)

    def data_received(self, data: bytes) -> None:
        """Collect bytes, and resolve the request once the response is complete."""
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self._received, 0, head + 2)
        end = head + 4 + (int(length[1]) if length else 0)
        if len(self._received) >= end:
            response = int(self._received[9:12]), bytes(self._received[head + 4 : end])
            self._received.clear()
            self._resolve(response)

    async def send(self, request: bytes) -> Response:
        """Send a request and return its response. On timeout, abort and return NO_RESPONSE."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._response = loop.create_future()
        timer = loop.call_later(RESPONSE_SECONDS, self.abort)
        try:
            self._transport.write(request)
            return await self._response
        finally:
            timer.cancel()

    def abort(self) -> None:
        """Close the connection without flushing."""
        if self._transport is not None:
            self._transport.abort()

    def _resolve(self, response: Response) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_result(response)


class FailoverClient:
    """Sends requests to one receiver, until `fail_over` moves on to the next."""

    def __init__(self, addresses: Callable[[], Sequence[Address]], start: int) -> None:
        self._addresses = addresses
        self._index = start
        self._address: Address | None = None
        self._connection: Connection | None = None

    async def request(self, method: str, path: str, body: bytes = b"") -> Response:
        """Send one request and return its response, or NO_RESPONSE."""
        addresses = self._addresses()
        address = addresses[self._index % len(addresses)]
        connection = await self._connect(address)
        if connection is None:
            return NO_RESPONSE
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {address[0]}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return await connection.send(head.encode() + body)

    def fail_over(self) -> None:
        """Use the next receiver from now on."""
        self._index += 1

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.abort()

    async def _connect(self, address: Address) -> Connection | None:
        connection = self._connection
        if connection is not None and connection.is_open and address == self._address:
            return connection
        self.close()
        self._connection, self._address = None, address
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(RESPONSE_SECONDS):
                _, self._connection = await asyncio.get_running_loop().create_connection(
                    Connection, *address
                )
        return self._connection
