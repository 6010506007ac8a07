"""A connection to Redis: commands in, replies out, in order.

redis-py takes five times the CPU time for a batch of keys (decision 26), and two commands are all
that is needed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final, NamedTuple, cast

from onceward.accelerators.redis.address import RedisAddress
from onceward.accelerators.redis.replies import MalformedReply, Reply, ReplyError, ReplyReader

_LOST: Final = "the connection was closed"


class NoTls(ConnectionError):
    """The peer does not complete a TLS handshake."""


class UntrustedCertificate(ConnectionError):
    """The certificate of the peer is not valid for its host, or its authority is unknown."""


def encode(*arguments: bytes) -> bytes:
    """Return a command as Redis reads it."""
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


class _Caller(NamedTuple):
    """A caller that waits for a number of replies, whose lists have at most so many items."""

    future: asyncio.Future[list[Reply]]
    replies: int
    max_items: int


class RedisConnection(asyncio.Protocol):
    """One connection. Commands may overlap: Redis replies in their order."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._reader = ReplyReader()
        self._pending: deque[_Caller] = deque()
        """The callers that wait, and those that timed out: their replies are still to come."""
        self._replies: list[Reply] = []
        self._transport: asyncio.Transport | None = None
        self._reason: str = _LOST
        self.violation: str | None = None
        """How the peer broke the protocol, which ended the connection."""

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None

    async def send(
        self, commands: Sequence[bytes], seconds: float, *, max_items: int = 0
    ) -> list[Reply]:
        """Send encoded commands and return their replies. A reply may be a ReplyError.

        A reply whose lists have more than `max_items` items ends the connection.

        Raise TimeoutError after `seconds`, and ConnectionError if the connection is lost. After a
        timeout the connection remains usable: the late replies are dropped.
        """
        if self._transport is None:
            raise ConnectionError(self._reason)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Reply]] = loop.create_future()
        self._pending.append(_Caller(future, len(commands), max_items))
        self._transport.write(b"".join(commands))
        timer = loop.call_later(seconds, _expire, future)
        try:
            return await future
        finally:
            timer.cancel()

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end(_LOST)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Give each caller its replies."""
        try:
            self._replies += self._reader.feed(data, *self._allowance())
        except MalformedReply as error:
            self._fail(str(error))
            return
        while self._pending and len(self._replies) >= self._pending[0].replies:
            future, count, _ = self._pending.popleft()
            replies, self._replies = self._replies[:count], self._replies[count:]
            if not future.done():  # it may have timed out
                future.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all callers."""
        self._end(f"{_LOST}: {type(exc).__name__}" if exc else _LOST)

    def _allowance(self) -> tuple[int, int]:
        """Return how many replies are to come, and the most items that one may have."""
        count = sum(caller.replies for caller in self._pending) - len(self._replies)
        return count, max((caller.max_items for caller in self._pending), default=0)

    def _fail(self, reason: str) -> None:
        self.violation = reason
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._reason = reason
        for caller in self._pending:
            if not caller.future.done():
                caller.future.set_exception(ConnectionError(reason))
        self._pending.clear()
        self._on_lost()


def raise_error(replies: Sequence[Reply]) -> None:
    """Raise the first ReplyError of some replies."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply


async def connect(
    address: RedisAddress, seconds: float, on_lost: Callable[[], None]
) -> RedisConnection:
    """Connect, authenticate and select the database. Call `on_lost` when the connection ends.

    Raise OSError (TimeoutError, NoTls and UntrustedCertificate are), or ReplyError if Redis
    refuses.
    """
    loop = asyncio.get_running_loop()
    make = partial(RedisConnection, on_lost)
    if not address.has_tls:
        async with asyncio.timeout(seconds):
            _, connection = await loop.create_connection(make, address.host, address.port)
    else:
        connection = await _connect_tls(make, address, seconds)
    try:
        raise_error(await connection.send(_handshake(address), seconds))
    except ConnectionError as error:
        if address.has_tls or connection.violation:
            raise
        advice = "if it wants TLS, write rediss:// instead of redis://"
        raise ConnectionError(f"{error}; {advice}") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect_tls(
    make: Callable[[], RedisConnection], address: RedisAddress, seconds: float
) -> RedisConnection:
    """Connect with TLS. A Redis without TLS waits for the end of a command, or hangs up."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(2 * seconds):  # the handshake has its own timeout
            _, connection = await loop.create_connection(
                make,
                address.host,
                address.port,
                ssl=_tls_context(),
                ssl_handshake_timeout=seconds,
            )
    except ssl.SSLCertVerificationError as error:
        raise UntrustedCertificate(error.verify_message) from error
    except ConnectionAbortedError as error:
        raise NoTls("its handshake timed out") from error
    except (ssl.SSLError, ConnectionResetError) as error:
        raise NoTls(type(error).__name__) from error
    return connection


@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _handshake(address: RedisAddress) -> list[bytes]:
    commands = []
    if address.password:
        names = [address.user.encode()] if address.user else []
        commands.append(encode(b"AUTH", *names, address.password.encode()))
    return [*commands, encode(b"SELECT", b"%d" % address.database)]


def _expire(future: asyncio.Future[list[Reply]], iterations: int = 2) -> None:
    """Time out, unless the replies have arrived but were not read yet.

    The event loop of a busy process runs its timers before it reads. Two iterations later it has
    read what was there.
    """
    if future.done():
        return
    if iterations:
        asyncio.get_running_loop().call_soon(_expire, future, iterations - 1)
    else:
        future.set_exception(TimeoutError("no reply in time"))
