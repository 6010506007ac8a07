"""Connections to PostgreSQL: how they are made, kept, and what their errors mean."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from onceward.errors import (
    ConfigurationError,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    Unwritable,
)
from onceward.ports import Row
from onceward.runtime.sql_text import Sql
from onceward.store.postgres import arrays

Connection: TypeAlias = psycopg.AsyncConnection[Row]

CONNECT_OPTIONS: Final[dict[str, Any]] = {
    "autocommit": True,
    "row_factory": dict_row,
    "prepare_threshold": 2,
}
RETRYABLE: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)

# A plan over the JIT threshold costs hundreds of milliseconds; an inherited isolation level would
# change what the statements see.
_SESSION: Final = {
    "jit": "off",
    "default_transaction_isolation": "read\\ committed",
    "timezone": "UTC",
}


def conninfo(url: str, **session: str) -> str:
    """The user's URL with the session settings that the statements rely on.

    Raises ConfigurationError. The library's own message would show parts of the password.
    """
    try:
        address = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        address = {"host": "@"}
    port = str(address.get("port", "")).replace(",", "")
    if "@" in str(address.get("host", "")) or not (port.isdigit() or not port):
        raise ConfigurationError(
            "database_url is not an address that PostgreSQL can read. It must be postgresql://"
            "user:password@host:port/name, with % and two digits for each of @ / : % # in "
            "a part, and with no parameters but PostgreSQL's own"
        )
    options = " ".join(f"-c {name}={value}" for name, value in (_SESSION | session).items())
    given: dict[str, Any] = {
        "connect_timeout": 5,
        "tcp_user_timeout": 15000,
        "application_name": "onceward",
        **address,
    }
    given["options"] = f"{given.get('options', '')} {options}".strip()
    return make_conninfo(**given)


async def connect(info: str, connection_class: type[Connection]) -> Connection:
    """Open a connection that accepts the arrays of a batch. Raise StoreUnavailable."""
    try:
        connection = await connection_class.connect(info, **CONNECT_OPTIONS)
    except psycopg.Error as error:
        raise translate_error(error, sent=False) from error
    arrays.register_dumpers(connection)
    return connection


def translate_error(error: psycopg.Error, *, sent: bool = True) -> StoreError:
    """Say what an error of the driver means for what was asked. `sent`: it may have been done."""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    if not is_lost(error):
        return Unwritable(text)
    in_commit = error.sqlstate is None or error.sqlstate[:2] in ("08", "57")
    return OutcomeUnknown(text) if sent and in_commit else StoreUnavailable(text)


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is of no more use: gone, or with a server that became a standby."""
    return isinstance(error, (*LOST, psycopg.errors.ReadOnlySqlTransaction))


async def run(connection: Connection, statement: Sql, parameters: Mapping[str, Any]) -> list[Row]:
    """Run a statement and answer with its rows."""
    cursor = await connection.execute(statement.pyformat, parameters)
    return await cursor.fetchall() if cursor.description else []


def is_hung_up(connection: Connection) -> bool:
    """Whether the server has ended a connection that nobody uses: it sends nothing else on one."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


async def run_at_once(
    connection: Connection, statements: Sequence[Sql], parameters: Mapping[str, Any]
) -> list[list[Row]]:
    """Run statements in one transaction, sent as one message; answers with the rows of each.

    Once the server has it, it comes to its end by itself: a process that stands still meanwhile
    leaves no lock behind. A pipeline would, for as long as its last part is not sent.
    """
    text = b";\n".join(statement.pyformat for statement in statements)
    cursor = psycopg.AsyncClientCursor(connection)
    await cursor.execute(text, parameters)
    rows = []
    more: bool | None = True
    while more:
        rows.append(await cursor.fetchall() if cursor.description else [])
        more = cursor.nextset()
    return rows


class DedicatedConnection:
    """One connection for one purpose: made when needed, and anew when lost."""

    def __init__(self, info: str, connection_class: type[Connection]) -> None:
        self._info = info
        self._connection_class = connection_class
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """Have the connection for oneself. Errors of the driver come out as StoreErrors."""
        async with self._lock:
            try:
                yield await self._usable()
            except psycopg.Error as error:
                if is_lost(error):
                    await self._drop()
                raise translate_error(error) from error
            except BaseException:
                await self._drop()
                raise

    async def _usable(self) -> Connection:
        if self._connection is not None and (
            self._connection.closed or is_hung_up(self._connection)
        ):
            await self._drop()
        if self._connection is None:
            self._connection = await connect(self._info, self._connection_class)
        return self._connection

    async def close(self) -> None:
        """Let go of the connection."""
        await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
