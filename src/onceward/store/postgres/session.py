"""The PostgreSQL session that the statements rely on: its settings, their check and their reset.

The role, the database, the environment (PGOPTIONS, PGCLIENTENCODING, PGTZ, …), a service file and a
pooler each decide settings of a connection. Every new session is therefore reset, gets the settings
below and is read back; one message does the same after each transaction of a handler. Startup
parameters would be shorter, but poolers refuse or drop them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

import psycopg
from psycopg.pq.abc import PGresult

from onceward.errors import OutcomeUnknown, StoreBlocked
from onceward.ports import Row

TextRows: TypeAlias = list[list[str]]
"""The rows of a statement, as the server writes them."""

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
_ROLE_SETTINGS: Final = (
    "search_path",
    "row_security",
    "statement_timeout",
    "lock_timeout",
    "transaction_timeout",
)
"""The settings that handlers have as the role and the database decided them."""

# These and pg_advisory_unlock_all() are DISCARD ALL without the prepared statements, which psycopg
# keeps using. RESET ROLE returns to the role of ALTER ROLE … SET role, if there is one.
_RESET_SETTINGS: Final = "SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL"
_RESET_OBJECTS: Final = "CLOSE ALL; UNLISTEN *; DISCARD SEQUENCES; DISCARD TEMP"
# Prepared once a session: to parse the pins again would cost as much as the rest of a reset.
_PIN: Final = "EXECUTE onceward_pins"
RESET: Final = f"{_RESET_SETTINGS}; {_PIN}; {_RESET_OBJECTS}".encode()
# The handler may have suppressed the warning of a commit that no standby confirmed.
COMMIT: Final = b"SET LOCAL client_min_messages = 'warning'; COMMIT"
_SYNC_WAIT: Final = "SyncRepWaitForLSN"
"""The server's function that waits for a standby: a name, because messages are translated."""
_UNCONFIRMED: Final = (
    "the wait for a synchronous standby was cancelled: the transaction is on the primary alone"
)
SHARED_BACKENDS: Final = (
    "A pooler gives each transaction another server connection (pgbouncer: pool_mode = transaction "
    "or statement). Onceward's connections keep settings, prepared statements and LISTEN. Set "
    "pool_mode = session for this database, or connect to PostgreSQL directly (docs/install.md)"
)
_PID: Final = "pg_catalog.pg_backend_pid()"
_UNLOCK: Final = "pg_catalog.pg_advisory_unlock_all()"


@dataclass(frozen=True, slots=True)
class Session:
    """The settings of the connections for one purpose."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings beside, or instead of, those that every session has."""
    allow_weak_durability: bool = False
    keeps_role_settings: bool = False
    """Whether it keeps the search_path, row security and time limits of its role.

    If not, each handler's transaction sets them. Setting the search_path twice a job costs as much
    as the rest of a reset. Onceward's own statements in a session that keeps them name the schema
    of everything.
    """


class SessionConnection(psycopg.AsyncConnection[Row]):
    """A connection with a session, which notices commits that no standby confirmed."""

    _begin = b""
    _deallocates_all = True
    """Whether psycopg may send DEALLOCATE ALL, which would drop Onceward's statements too.

    If so, psycopg prepares nothing in handlers' transactions.
    """
    _state = ""
    """The pinned settings and the server process, as the server shows them."""
    _read = b""
    _is_unconfirmed = False

    async def establish(self, session: Session) -> None:
        """Reset a new session, pin its settings, and read them back.

        Raise StoreBlocked if the database has another encoding, or if a pooler lost the settings.
        """
        self.add_notice_handler(self._note_unconfirmed)
        version = self.info.server_version // 10_000
        names = [name for name in _ROLE_SETTINGS if _exists(name, version)]
        (((encoding, *found),),) = await self.exchange(_inspect_message(names))
        if encoding != ENCODING:
            raise StoreBlocked(_other_encoding(self.info.dbname, encoding))
        pins = _pins(session, version)
        decided = zip(names, found, strict=True)
        self._begin = _begin_message({name: value for name, value in decided if name in pins})
        self._state = state_in(await self.exchange(_pin_message(pins)))
        self._read = _read_message(pins)
        # Another message, because a pooler may hand it to another server connection.
        if not await self._has_session():
            raise StoreBlocked(SHARED_BACKENDS)

    async def begin(self, *further: bytes) -> tuple[datetime, list[TextRows]]:
        """Begin a transaction for a handler, and run further statements.

        Return its now(), and the rows of the further statements that have rows.
        """
        if self._deallocates_all:
            self.prepare_threshold = None
        ((began, *_),), *rows = await self.exchange(b"; ".join((self._begin, *further)))
        return datetime.fromisoformat(began), rows

    async def commit_and_reset(self, *before: bytes) -> None:
        """Run statements, commit the transaction of a handler, and reset the session.

        An error of the reset closes the connection: the commit has succeeded. Raise OutcomeUnknown
        if a pooler ran the commit in another session.
        """
        await self.exchange(b"; ".join((*before, COMMIT)))
        state = None
        with suppress(psycopg.Error):
            state = state_in(await self.exchange(RESET))
        await self._check_reset(state)

    async def reset_session(self, *, rolls_back: bool) -> None:
        """Undo what a handler changed in the session. Close it if it is not as before."""
        message = b"ROLLBACK; " + RESET if rolls_back else RESET
        if state_in(await self.exchange(message)) != self._state:
            await self.close()

    async def _check_reset(self, state: str | None) -> None:
        """Close a connection whose session is not as before after a commit, or could not be reset.

        Raise OutcomeUnknown behind a pooler: another session may have run the commit.
        """
        if state != self._state:
            is_pooled = self.is_pooled
            await self.close()
            if is_pooled:
                raise OutcomeUnknown(SHARED_BACKENDS)

    async def require_session(self) -> None:
        """Raise OutcomeUnknown, and close, if a pooler ran statements in another session.

        Its pool mode may have changed since the start. The commit may then have been one that
        does not wait for the disk.
        """
        if self.is_pooled and not await self._has_session():
            await self.close()
            raise OutcomeUnknown(SHARED_BACKENDS)

    async def _has_session(self) -> bool:
        return state_in(await self.exchange(self._read)) == self._state

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler answers in place of the server: it invents the process id."""
        return not self._state.startswith(f"{self.info.backend_pid} ")

    def require_confirmed(self) -> None:
        """Raise OutcomeUnknown if no standby confirmed a commit: a failover may lose it."""
        if self._is_unconfirmed:
            self._is_unconfirmed = False
            raise OutcomeUnknown(_UNCONFIRMED)

    async def exchange(self, message: bytes) -> list[TextRows]:
        """Run a message of several statements. Return the rows of those that have rows."""
        cursor = self.cursor()
        await cursor.execute(message, prepare=False)
        rows = []
        has_more: bool | None = True
        while has_more:
            if cursor.description is not None and cursor.pgresult is not None:
                rows.append(text_rows(cursor.pgresult))
            has_more = cursor.nextset()
        return rows

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


def text_rows(result: PGresult) -> TextRows:
    """Return the rows of a result. Onceward's messages have no NULLs in them."""
    columns = range(result.nfields)
    return [
        [(result.get_value(row, column) or b"").decode() for column in columns]
        for row in range(result.ntuples)
    ]


def state_in(rows: list[TextRows]) -> str:
    """Return the state of the session, which the last statement with rows has read."""
    return rows[-1][0][0]


async def _backend(connection: SessionConnection) -> int:
    cursor = await connection.execute(f"SELECT {_PID} AS pid".encode(), prepare=False)
    rows = await cursor.fetchall()
    return int(rows[0]["pid"])


def _pins(session: Session, version: int) -> dict[str, str]:
    """Return the settings to pin, with their values as SQL."""
    values = _PINS | dict(session.settings)
    if session.keeps_role_settings:
        values = {name: value for name, value in values.items() if name not in _ROLE_SETTINGS}
    pins = {name: literal(value) for name, value in values.items() if _exists(name, version)}
    if not session.allow_weak_durability:
        pins.setdefault("synchronous_commit", _DURABLE_LEVEL)
    return pins


def _inspect_message(names: Iterable[str]) -> bytes:
    """Return the message that resets a session and returns the encoding and what others decided."""
    columns = ", ".join(map(_current, ("server_encoding", *names)))
    # An earlier client of a pooler may have left prepared statements.
    return f"DEALLOCATE ALL; {_RESET_SETTINGS}; {_RESET_OBJECTS}; SELECT {columns}".encode()


def _pin_message(pins: Mapping[str, str]) -> bytes:
    """Return the message that prepares the pins, runs them and returns the state."""
    values = (_set(name, value) for name, value in pins.items())
    return f"PREPARE onceward_pins AS {_state_query(values)}, {_UNLOCK}; {_PIN}".encode()


def _read_message(names: Iterable[str]) -> bytes:
    return _state_query(map(_current, names)).encode()


def _state_query(values: Iterable[str]) -> str:
    return f"SELECT pg_catalog.concat_ws(' ', {_PID}, {', '.join(values)}) AS state"


def _begin_message(settings: Mapping[str, str]) -> bytes:
    columns = (_set(name, literal(value), is_local=True) for name, value in settings.items())
    return f"BEGIN; SELECT {', '.join(('pg_catalog.now()', *columns))}".encode()


def _exists(name: str, version: int) -> bool:
    return version >= _FIRST_VERSIONS.get(name, 0)


def _set(name: str, value: str, *, is_local: bool = False) -> str:
    return f"pg_catalog.set_config('{name}', {value}, {str(is_local).lower()})"


def _current(name: str) -> str:
    return f"pg_catalog.current_setting('{name}')"


def literal(text: str | None) -> str:
    """Return a value as SQL. Raise psycopg.DataError for a NUL, which would end the message."""
    if text is None:
        return "NULL"
    if "\0" in text:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    # A backslash would depend on standard_conforming_strings, which may not be pinned.
    return f"E'{text.replace(chr(92), chr(92) * 2).replace(chr(39), chr(39) * 2)}'"


def _other_encoding(database: str, encoding: str) -> str:
    return (
        f"The database {database} has the encoding {encoding}, which cannot store every event id. "
        f"Use one with {ENCODING}: CREATE DATABASE … ENCODING '{ENCODING}' TEMPLATE template0"
    )


_DURABLE_LEVEL: Final = f"""
    CASE WHEN {_current("synchronous_commit")} OPERATOR(pg_catalog.=) 'off' THEN 'on'
    ELSE {_current("synchronous_commit")} END
"""
"""The level that the operator chose, unless it does not wait for the disk."""
