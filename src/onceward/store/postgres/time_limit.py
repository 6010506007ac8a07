"""A time limit for statements to which a frozen server, or a broken network, does not respond."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

STATEMENT_SECONDS: Final = 10.0
"""Time for one of Onceward's own statements. The server then cancels it, and frees its locks."""

LOCK_SECONDS: Final = 8.0
"""Time for its locks. It is shorter, so that the error names a lock where one is the cause."""

RESPONSE_SECONDS: Final = 12.0
"""Time for one use of a connection by Onceward's own statements. Then the connection is dropped.

It is longer than STATEMENT_SECONDS: a server that works ends a slow statement itself, and none is
left behind. A server that does not is frozen, or the network is.
"""


OWN_LIMITS: Final = {
    "statement_timeout": f"{STATEMENT_SECONDS:g}s",
    "lock_timeout": f"{LOCK_SECONDS:g}s",
}
"""The server's limits for Onceward's own statements."""


class NoResponse(psycopg.OperationalError):
    """PostgreSQL did not respond in time, and the connection was shut down."""


@contextmanager
def time_limit(connection: psycopg.AsyncConnection[Any], seconds: float | None) -> Iterator[None]:
    """Shut the connection down if the block takes longer. Raise NoResponse then.

    A cancellation would first ask the server to cancel the statement, and a frozen server does not
    respond to that either.
    """
    is_expired = False

    def expire() -> None:
        nonlocal is_expired
        is_expired = True
        shut_down(connection)

    loop = asyncio.get_running_loop()
    timer = None if seconds is None else loop.call_later(seconds, expire)
    try:
        yield
    except psycopg.Error as error:
        if not is_expired:
            raise
        message = f"PostgreSQL did not respond within {seconds:g} s; the connection was dropped"
        raise NoResponse(message) from error
    finally:
        if timer is not None:
            timer.cancel()


def shut_down(connection: psycopg.AsyncConnection[Any]) -> None:
    """End the wait for a response: libpq reads the end of the stream.

    The socket itself stays open: a statement in progress still uses it.
    """
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)
