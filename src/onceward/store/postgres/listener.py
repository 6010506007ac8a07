"""Listens for notifications of new jobs, on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from onceward.errors import StoreUnavailable
from onceward.store.postgres.connections import OPERATIONAL, Connection
from onceward.store.postgres.pool import drop
from onceward.store.postgres.time_limit import RESPONSE_SECONDS, time_limit

CHECK_SECONDS: Final = 15.0
"""Interval at which an idle listener checks that its connection still works."""

RECONNECT_SECONDS: Final = 1.0
"""Pause before a lost connection is opened again. Workers also poll."""

# A listener that does not read keeps the server from truncating the queue of notifications. Of the
# server's side of the connection; it has no effect on a Unix socket.
_END_FROZEN_LISTENER: Final = "SET tcp_user_timeout = '15s'"

OpenConnection = Callable[[], Awaitable[Connection]]


async def listen(open_connection: OpenConnection) -> AsyncGenerator[None, None]:
    """Yield when notifications arrive or may have been missed. Reconnect for ever."""
    while True:
        try:
            async with aclosing(_notifications(open_connection)) as notifications:
                async for _ in notifications:
                    yield
        except (StoreUnavailable, *OPERATIONAL):
            await asyncio.sleep(RECONNECT_SECONDS)


async def _notifications(open_connection: OpenConnection) -> AsyncGenerator[None, None]:
    """Yield for each notification, until the connection is lost."""
    connection = await open_connection()
    try:
        with time_limit(connection, RESPONSE_SECONDS):
            await connection.execute(_END_FROZEN_LISTENER)
            await connection.execute("LISTEN onceward_jobs")
        while True:
            yield  # before LISTEN and during SELECT, notifications may have been missed
            async for _ in connection.notifies(timeout=CHECK_SECONDS):
                yield
            with time_limit(connection, RESPONSE_SECONDS):
                await connection.execute("SELECT 1")
    finally:
        drop(connection)
