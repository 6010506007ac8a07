"""The PostgreSQL session that the statements rely on: its settings, their check and their reset.

The role, the database, the environment (PGOPTIONS, PGCLIENTENCODING, PGTZ, …), a service file and a
pooler each decide settings of a connection. One message therefore resets every new session, pins
the settings below and returns them. The same message follows each transaction of a handler. Startup
parameters would be shorter, but poolers refuse or drop them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from onceward.errors import OutcomeUnknown, StoreBlocked
from onceward.ports import Row

ENCODING: Final = "UTF8"

_FIRST_VERSIONS: Final = {"idle_session_timeout": 14, "transaction_timeout": 17}
"""The version of PostgreSQL that introduced a setting, where it is above the lowest supported."""

_PINS: Final = {
    "search_path": "pg_catalog",  # functions of other schemas may match arguments better
    "client_encoding": ENCODING,
    "client_min_messages": "warning",  # a commit that no standby confirmed is only a warning
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    # An inherited isolation level would change which rows the statements see.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "row_security": "off",  # a policy that hides rows becomes an error
    "jit": "off",  # a plan over the JIT threshold costs hundreds of milliseconds
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_FOR_HANDLERS: Final = (
    "search_path",
    "row_security",
    "statement_timeout",
    "lock_timeout",
    "transaction_timeout",
)
"""The settings that handlers have as the role and the database decided them."""

# DISCARD ALL without the prepared statements, which psycopg keeps using. RESET ROLE returns to the
# role of ALTER ROLE … SET role, if there is one.
_RESET: Final = (
    "SET SESSION AUTHORIZATION DEFAULT",
    "RESET ROLE",
    "RESET ALL",
    "CLOSE ALL",
    "UNLISTEN *",
    "SELECT pg_catalog.pg_advisory_unlock_all()",
    "DISCARD SEQUENCES",
    "DISCARD TEMP",
)
_SYNC_WAIT: Final = "SyncRepWaitForLSN"
"""The server's function that waits for a standby: a name, because messages are translated."""
_UNCONFIRMED: Final = (
    "the wait for a synchronous standby was cancelled: the transaction is on the primary alone"
)
_PID: Final = "pg_catalog.pg_backend_pid() AS pid"
SHARED_BACKENDS: Final = (
    "A pooler gives each transaction another server connection (pgbouncer: pool_mode = transaction "
    "or statement). Onceward's connections keep settings, prepared statements and LISTEN. Set "
    "pool_mode = session for this database, or connect to PostgreSQL directly (docs/install.md)"
)


@dataclass(frozen=True, slots=True)
class Session:
    """The settings of the connections for one purpose."""

    pins: tuple[tuple[str, str], ...]
    is_lent: bool
    """Whether handlers run statements in it."""
    allow_weak_durability: bool


def make_session(
    settings: Mapping[str, str], *, is_lent: bool = False, allow_weak_durability: bool = False
) -> Session:
    """Return a session with some settings beside, or instead of, those that every session has."""
    return Session(tuple((_PINS | dict(settings)).items()), is_lent, allow_weak_durability)


class SessionConnection(psycopg.AsyncConnection[Row]):
    """A connection with a session, which notices commits that no standby confirmed."""

    _session: Session
    _shown: Mapping[str, Any]
    _is_unconfirmed = False

    async def establish(self, session: Session) -> None:
        """Reset a new session, pin its settings, and read them back.

        Raise StoreBlocked if the database has another encoding, or if a pooler lost the settings.
        """
        self.add_notice_handler(self._note_unconfirmed)
        self._session = session
        await self.execute("DEALLOCATE ALL")  # of an earlier client of the pooler
        self._shown = await self._pin()
        # Another message, because a pooler may hand it to another server connection.
        names = tuple(name for name in self._shown if name != "pid")
        row = await self._last_row(_read_message(names))
        encoding = row.pop("server_encoding")
        if encoding != ENCODING:
            raise StoreBlocked(_other_encoding(self.info.dbname, encoding))
        if row != self._shown:
            raise StoreBlocked(SHARED_BACKENDS)

    async def reset_session(self) -> None:
        """Undo what a handler changed. Close the connection if the settings are not as before."""
        if await self._pin() != self._shown:
            await self.close()

    def handler_settings(self) -> bytes:
        """Return the statement that gives a transaction the settings meant for handlers."""
        return _handler_message(self._version)

    def require_confirmed(self) -> None:
        """Raise OutcomeUnknown if no standby confirmed a commit: a failover may lose it."""
        if self._is_unconfirmed:
            self._is_unconfirmed = False
            raise OutcomeUnknown(_UNCONFIRMED)

    @property
    def _version(self) -> int:
        return self.info.server_version // 10_000

    async def _pin(self) -> Row:
        return await self._last_row(_pin_message(self._session, self._version))

    async def _last_row(self, message: bytes) -> Row:
        """Run a message of several statements and return the row of the last one."""
        cursor = self.cursor(row_factory=dict_row)
        await cursor.execute(message, prepare=False)
        while cursor.nextset():
            pass
        row = await cursor.fetchone()
        return row or {}

    def _note_unconfirmed(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.source_function == _SYNC_WAIT:
            self._is_unconfirmed = True


async def require_own_backends(first: SessionConnection, second: SessionConnection) -> None:
    """Raise StoreBlocked if a pooler lends one server connection to several clients.

    Such a pooler gives a transaction the server connection that was free last, or first: either
    way, one of these transactions gets another one than it would in a session of its own.
    """
    pids = [await _backend(each) for each in (first, first, second, second, first)]
    if not (pids[0] == pids[1] == pids[4] != pids[2] == pids[3]):
        raise StoreBlocked(SHARED_BACKENDS)


async def is_pooled(connection: SessionConnection) -> bool:
    """Return whether a pooler answers in place of the server: it invents the process id."""
    return await _backend(connection) != connection.info.backend_pid


async def _backend(connection: SessionConnection) -> int:
    cursor = await connection.execute(f"SELECT {_PID}".encode(), prepare=False)
    rows = await cursor.fetchall()
    return int(rows[0]["pid"])


@lru_cache
def _pin_message(session: Session, version: int) -> bytes:
    """Return the message that resets a session, pins its settings and returns them."""
    statements = [*_RESET]
    if session.is_lent:
        saved = (_set(_saved(name), _current(name)) for name in _kept(version))
        statements.append(f"SELECT {', '.join(saved)}")
    statements.append("SET search_path = pg_catalog")  # decides what the operators below mean
    pins = {name: _literal(value) for name, value in session.pins if _exists(name, version)}
    if not session.allow_weak_durability:
        pins.setdefault("synchronous_commit", _DURABLE_LEVEL)
    columns = (f'{_set(name, value)} AS "{name}"' for name, value in pins.items())
    statements.append(f"SELECT {', '.join(columns)}, {_PID}")
    return ";\n".join(statements).encode()


@lru_cache
def _read_message(names: tuple[str, ...]) -> bytes:
    """Return the statement that reads settings, the process id and the database's encoding."""
    columns = (f'{_current(name)} AS "{name}"' for name in (*names, "server_encoding"))
    return f"SELECT {', '.join(columns)}, {_PID}".encode()


@lru_cache
def _handler_message(version: int) -> bytes:
    restored = (_set(name, _current(_saved(name)), is_local=True) for name in _kept(version))
    return f"SELECT {', '.join(restored)}".encode()


def _kept(version: int) -> list[str]:
    return [name for name in _FOR_HANDLERS if _exists(name, version)]


def _exists(name: str, version: int) -> bool:
    return version >= _FIRST_VERSIONS.get(name, 0)


def _saved(name: str) -> str:
    """Return the setting that stores the original value of another for the session."""
    return f"onceward.{name}"


def _set(name: str, value: str, *, is_local: bool = False) -> str:
    return f"pg_catalog.set_config({_literal(name)}, {value}, {str(is_local).lower()})"


def _current(name: str) -> str:
    return f"pg_catalog.current_setting({_literal(name)})"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _other_encoding(database: str, encoding: str) -> str:
    return (
        f"The database {database} has the encoding {encoding}, which cannot store every event id. "
        f"Use one with {ENCODING}: CREATE DATABASE … ENCODING '{ENCODING}' TEMPLATE template0"
    )


_DURABLE_LEVEL: Final = f"""
    CASE {_current("synchronous_commit")} WHEN 'off' THEN 'on'
    ELSE {_current("synchronous_commit")} END
"""
"""The level that the operator chose, unless it does not wait for the disk."""
