"""The HTTP client of forwards: one POST on a connection of its own, to an address that was checked.

Nothing here follows a redirect, uses a proxy of the environment, or looks a name up twice.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, Protocol

import h11

from onceward.errors import EffectNotApplied
from onceward.runtime.threads import call_in_thread
from onceward.work.forwarding.addresses import require_allowed
from onceward.work.forwarding.target import Target

MAX_CONNECT_SECONDS: Final = 10.0
MAX_HEAD_BYTES: Final = 32 * 1024
"""The limit for all that comes before the body of a response."""
MAX_REST_BYTES: Final = 64 * 1024
_REST_SECONDS: Final = 0.2
"""How much of the body of a response is read, and for how long. Its content decides nothing."""
_MAX_ADDRESSES: Final = 8
_CHUNK_BYTES: Final = 16 * 1024

Header = tuple[str, str]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name. Raises OSError."""


class Response(NamedTuple):
    """The status of a response, and its header Retry-After."""

    status: int
    retry_after: str | None = None


class Post(Protocol):
    """Posts a body to a target, as `HttpClient.post` does."""

    async def __call__(
        self,
        target: Target,
        headers: Iterable[Header],
        body: bytes,
        *,
        allow_private: bool,
        seconds: float,
    ) -> Response:
        """Return the response. Raise EffectNotApplied, or ConnectionError."""


async def resolve(host: str, port: int) -> list[str]:
    """Look a name up as the system does, in a thread: the lookup may take long."""
    found = await call_in_thread(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), name="onceward-lookup"
    )
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@cache
def system_tls() -> ssl.SSLContext:
    """Return the settings of TLS, with the authorities that the system trusts."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class HttpClient:
    """Posts to targets."""

    resolve: Resolve = resolve
    tls: Callable[[], ssl.SSLContext] = system_tls

    async def post(
        self,
        target: Target,
        headers: Iterable[Header],
        body: bytes,
        *,
        allow_private: bool,
        seconds: float,
    ) -> Response:
        """Post a body, and return the response. The caller ends a call that takes too long.

        Raise EffectNotApplied if nothing was sent, and ConnectionError if the response was lost.
        """
        connect_seconds = min(MAX_CONNECT_SECONDS, seconds / 2)
        reader, writer = await self._connect(target, connect_seconds, allow_private=allow_private)
        try:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
            writer.write(_request_bytes(connection, target, headers, body))
            response = await _read_response(connection, reader, target)
            with suppress(OSError, h11.RemoteProtocolError):
                await _read_rest(connection, reader)
            return response
        finally:
            # A close would wait for the other side. Nothing of it is needed any more.
            writer.transport.abort()

    async def _connect(
        self, target: Target, seconds: float, *, allow_private: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Look the target up once, check all its addresses, and connect to one of them."""
        deadline = asyncio.get_running_loop().time() + seconds
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                addresses = await self._addresses(target)
        except TimeoutError:
            raise _not_sent(target, f"cannot be resolved within {seconds:.3g} s") from None
        except OSError as error:
            raise _not_sent(target, f"cannot be resolved: {_reason(error)}") from None
        require_allowed(target, addresses, allow_private=allow_private)
        return await self._connect_to_any(target, addresses[:_MAX_ADDRESSES], deadline)

    async def _addresses(self, target: Target) -> Sequence[str]:
        if target.address is not None:
            return [target.address]
        addresses = await self.resolve(target.host, target.port)
        if not addresses:
            raise OSError("the name has no address")
        return addresses

    async def _connect_to_any(
        self, target: Target, addresses: Sequence[str], deadline: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that accepts. Each has its share of the time."""
        fault = ""
        loop = asyncio.get_running_loop()
        tls = None
        if target.is_encrypted:  # reading the authorities takes up to 0.3 s on a busy machine
            tls = await call_in_thread(self.tls, name="onceward-tls")
        for index, address in enumerate(addresses):
            share = (deadline - loop.time()) / (len(addresses) - index)
            try:
                async with asyncio.timeout(share):
                    return await asyncio.open_connection(
                        address,
                        target.port,
                        ssl=tls,
                        server_hostname=target.host if target.is_encrypted else None,
                    )
            except TimeoutError:
                fault = f"no connection within {share:.3g} s"
            except OSError as error:  # ssl.SSLError is one, too
                fault = _reason(error)
        raise _not_sent(target, f"cannot be reached: {fault}")


def _request_bytes(
    connection: h11.Connection, target: Target, headers: Iterable[Header], body: bytes
) -> bytes:
    every = [
        ("host", target.authority),
        ("connection", "close"),
        ("content-length", str(len(body))),
        *headers,
    ]
    events = (
        h11.Request(method="POST", target=target.request_target, headers=every),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    return b"".join(connection.send(event) or b"" for event in events)


async def _read_response(
    connection: h11.Connection, reader: asyncio.StreamReader, target: Target
) -> Response:
    """Read up to the head of the response. Raise ConnectionError if it does not come."""
    left = MAX_HEAD_BYTES
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                values = dict(event.headers)
                retry_after = values.get(b"retry-after")
                text = None if retry_after is None else retry_after.decode("latin-1")
                return Response(event.status_code, text)
            if event is h11.NEED_DATA and left > 0:
                data = await reader.read(min(_CHUNK_BYTES, left))
                left -= len(data)
                connection.receive_data(data)
            elif not isinstance(event, h11.InformationalResponse):
                break
    except h11.RemoteProtocolError:
        pass
    except OSError as error:
        raise ConnectionError(f"{target.host} did not respond: {_reason(error)}") from None
    if left <= 0:
        fault = f"the head of its response is over {MAX_HEAD_BYTES} bytes"
    else:
        fault = "it closed the connection, or its response is not HTTP"
    raise ConnectionError(f"{target.host} did not respond: {fault}")


async def _read_rest(connection: h11.Connection, reader: asyncio.StreamReader) -> None:
    """Read the body of a response, within limits: many servers log a connection that is cut."""
    left = MAX_REST_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_REST_SECONDS):
            while left > 0:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(min(_CHUNK_BYTES, left))
                    left -= len(data)
                    connection.receive_data(data)
                elif not isinstance(event, h11.Data):
                    return


def _not_sent(target: Target, fault: str) -> EffectNotApplied:
    return EffectNotApplied(f"{target.host} {fault}; nothing was sent")


def _reason(error: OSError) -> str:
    """Return the cause of a failure without paths, as the system names it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed ({error.reason or 'it was cut off'})"
    return error.strerror or str(error) or type(error).__name__
