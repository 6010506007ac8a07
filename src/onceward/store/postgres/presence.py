"""The presence of a worker: a session that holds a lock for as long as the worker lives.

The server ends the session with the worker's process, and then the lock is free: other workers that
look for lost leases see that the worker is dead, long before its leases expire. No handler is lent
this session, because its reset between two jobs would release the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import psycopg

from onceward.errors import StoreError
from onceward.store.locks import PRESENCE_NAMESPACE
from onceward.store.postgres.connections import OPERATIONAL, Connection
from onceward.store.postgres.pool import drop
from onceward.store.postgres.time_limit import RESPONSE_SECONDS, time_limit

CHECK_SECONDS: Final = 5.0
"""Interval at which a session is checked that the server may have lost."""

RECONNECT_SECONDS: Final = 0.25
"""Pause between two attempts to open a session."""

# A machine that vanishes sends no reset. These are settings of the server's side of the connection;
# they have no effect on a Unix socket.
_END_LOST_SESSION: Final = (
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 2; "
    "SET tcp_user_timeout = '9s'"
)
_NEW_NUMBER: Final = "SELECT nextval('onceward.worker_numbers') AS owner"
_LOCK: Final = f"SELECT pg_try_advisory_lock({PRESENCE_NAMESPACE}, %s) AS is_held"

OpenConnection = Callable[[], Awaitable[Connection]]


async def keep_presence(open_connection: OpenConnection) -> AsyncGenerator[int, None]:
    """Yield the number of the worker when a session holds its lock, and 0 when it is lost."""
    owner = 0
    while True:
        try:
            connection = await open_connection()
        except StoreError:
            await asyncio.sleep(RECONNECT_SECONDS)
            continue
        try:
            with time_limit(connection, RESPONSE_SECONDS):
                await connection.execute(_END_LOST_SESSION.encode(), prepare=False)
                owner = owner or await _value(connection, _NEW_NUMBER)
                is_held = await _value(connection, _LOCK, owner)
            if is_held:
                yield owner
                await _wait_until_lost(connection)
                yield 0
            else:
                # The server has not yet ended the previous session, or, after a restore, another
                # worker has the number.
                owner = 0
        except OPERATIONAL:
            yield 0
        finally:
            drop(connection)
        await asyncio.sleep(RECONNECT_SECONDS)


async def _wait_until_lost(connection: Connection) -> None:
    """Return when the session is lost."""
    try:
        while True:
            async for _ in connection.notifies(timeout=CHECK_SECONDS):
                pass
            with time_limit(connection, RESPONSE_SECONDS):
                await connection.execute("SELECT 1")
    except (psycopg.Error, StoreError):
        return


async def _value(connection: Connection, statement: str, *parameters: object) -> int:
    cursor = await connection.execute(statement.encode(), parameters)
    row = await cursor.fetchone()
    return int(next(iter(row.values()))) if row else 0
