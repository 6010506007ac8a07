"""Connections to PostgreSQL: how they are opened and kept, and what their errors mean."""

from __future__ import annotations

import re
import select
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from onceward.errors import (
    ConfigurationError,
    OutcomeUnknown,
    StoreBlocked,
    StoreError,
    StoreUnavailable,
    Unwritable,
)
from onceward.ports import Row
from onceward.runtime.redact import one_line
from onceward.runtime.sql_text import Sql
from onceward.store.base import ALTERED_ROWS
from onceward.store.locks import Lock
from onceward.store.migrate import newer_schema, require_known
from onceward.store.postgres import arrays
from onceward.store.postgres.address import address_fault, has_stray_at
from onceward.store.postgres.session import (
    ENCODING,
    SHARED_BACKENDS,
    Session,
    SessionConnection,
)
from onceward.store.postgres.time_limit import STATEMENT_SECONDS, time_limit

Connection: TypeAlias = SessionConnection

LOWEST_VERSION: Final = 12
"""The first version of PostgreSQL with plan_cache_mode and MATERIALIZED."""

CONNECT_OPTIONS: Final[dict[str, Any]] = {
    "autocommit": True,
    "row_factory": dict_row,
    "prepare_threshold": 2,
}
RETRYABLE: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_ACCESS_CLASSES: Final = ("3F", "42")
"""The classes of SQLSTATEs for missing privileges, schemas, tables and columns."""
# Without the quotation marks around it, which are translated with the message.
_ALTERED: Final = re.compile(r"\baltered (onceward\.\w+) \d+")
"""The text that a statement casts to a number, in vain, if a trigger altered its rows."""
_NEWER_SCHEMA: Final = re.compile(r"\bnewer schema (\d+)")
"""The same for a migration that this version does not know."""
NEWEST_MIGRATION: Final = "(SELECT max(number) FROM onceward.migrations)"
OTHER_SESSION: Final = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
)
"""Errors of a statement that a pooler ran in another session than the one before."""
OPERATIONAL: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""Errors of the connection or of the server, and not of a value in a statement."""
_LOST_STATES: Final = ("08", "57P", "25P03")
"""SQLSTATEs of a connection that broke, or that the server ended for no fault of the statement."""

READ_ONLY: Final = (
    "The database is read-only: a standby, or default_transaction_read_only is set for the role or "
    "database"
)
LOCKED: Final = (
    "another transaction holds a lock on Onceward's tables, and the statement was given up. Find "
    "it with pg_blocking_pids() and end it (docs/operating.md)"
)
STATEMENT_TIMEOUT: Final = (
    "statement_timeout of the role or database is too short for this statement: ALTER ROLE … RESET "
    "statement_timeout"
)

# A host that vanishes sends no reset. The kernel's own limits are two hours for an idle connection
# and a quarter of an hour for unacknowledged data.
_NETWORK: Final = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_ESTABLISH_SECONDS: Final = 5.0
"""Time for a new connection to establish its session."""

LOCK_NAMESPACE: Final = 7136231
"""The first key of all advisory locks, chosen at random: applications may use their own."""


def conninfo(url: str) -> str:
    """Return the user's URL with the parameters that it lacks.

    Raise ConfigurationError without libpq's message, which would show parts of the password.
    """
    try:
        parameters: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigurationError(address_fault(url)) from None
    port = str(parameters.get("port", "")).replace(",", "")
    if has_stray_at(url) or not (port.isdigit() or not port):
        raise ConfigurationError(address_fault(url))
    parameters = {
        **_NETWORK,
        "application_name": "onceward",
        **parameters,
        "client_encoding": ENCODING,  # so that an unknown PGCLIENTENCODING does no harm
    }
    return make_conninfo(**parameters)


async def connect(info: str, connection_class: type[Connection], session: Session) -> Connection:
    """Open a connection with a session that accepts the arrays of a batch.

    Raise StoreUnavailable, StoreBlocked if a pooler shares server connections, or
    ConfigurationError if the server is too old.
    """
    try:
        connection = await connection_class.connect(info, **CONNECT_OPTIONS)
    except psycopg.Error as error:
        raise translate_error(error, is_sent=False) from error
    try:
        with time_limit(connection, _ESTABLISH_SECONDS):
            await _prepare(connection, session)
    except OTHER_SESSION as error:
        await connection.close()
        raise StoreBlocked(SHARED_BACKENDS) from error
    except psycopg.Error as error:
        await connection.close()
        raise translate_error(error, is_sent=False) from error
    except BaseException:
        await connection.close()
        raise
    return connection


async def _prepare(connection: Connection, session: Session) -> None:
    """Check the server of a new connection, and establish its session."""
    version = connection.info.server_version // 10_000
    if version < LOWEST_VERSION:
        msg = f"The server is PostgreSQL {version}; Onceward needs {LOWEST_VERSION} or newer."
        raise ConfigurationError(msg)
    arrays.register_dumpers(connection)
    await connection.establish(session)


def translate_error(error: psycopg.Error, *, is_sent: bool = True) -> StoreError:
    """Return the StoreError for an error of psycopg.

    If the statement `is_sent` and the connection is lost, the statement may have committed.
    """
    text = error.diag.message_primary or one_line(str(error)) or type(error).__name__
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return StoreBlocked(READ_ONLY)
    if not isinstance(error, OPERATIONAL):
        return Unwritable(text)
    if is_statement_timeout(error):
        text = f"{text}. {STATEMENT_TIMEOUT}"
        return OutcomeUnknown(text) if is_sent else StoreBlocked(text)
    may_have_committed = error.sqlstate is None or error.sqlstate[:2] in ("08", "57")
    return OutcomeUnknown(text) if is_sent and may_have_committed else StoreUnavailable(text)


def ledger_error(error: psycopg.Error) -> StoreError:
    """Return the StoreError for an error in a statement of Onceward's own.

    A missing privilege or table is nobody's value: every write fails until it is repaired.
    """
    if is_statement_timeout(error):
        return OutcomeUnknown(f"PostgreSQL took over {STATEMENT_SECONDS:g} s for a statement")
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return StoreBlocked(LOCKED)
    if isinstance(error, OTHER_SESSION):
        return StoreBlocked(SHARED_BACKENDS)
    if altered := _ALTERED.search(error.diag.message_primary or ""):
        return Unwritable(ALTERED_ROWS.format(table=altered[1]))
    if newer := _NEWER_SCHEMA.search(error.diag.message_primary or ""):
        return newer_schema("postgres", f"{int(newer[1]):04}")
    translated = translate_error(error)
    is_access = (error.sqlstate or "").startswith(_ACCESS_CLASSES)
    return StoreUnavailable(str(translated)) if is_access else translated


def is_statement_timeout(error: psycopg.Error) -> bool:
    """Return whether a statement ran longer than the role or the database allows."""
    is_canceled = isinstance(error, psycopg.errors.QueryCanceled)
    return is_canceled and "statement timeout" in (error.diag.message_primary or "")


def is_connection_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Return whether the connection broke or was ended, for no fault of the statement."""
    if error.sqlstate is None:  # an error of the client
        return connection.closed
    return error.sqlstate.startswith(_LOST_STATES)


def is_read_only(connection: Connection) -> bool:
    """Return whether the server was read-only when the connection was opened, and not the handler.

    PostgreSQL reports both settings since version 14; a pooler does not.
    """
    names = ("in_hot_standby", "default_transaction_read_only")
    return any(connection.info.parameter_status(name) == "on" for name in names)


def lock_statement(lock: Lock, *, shared: bool = False) -> str:
    """Return the statement that takes an advisory lock until the transaction ends."""
    take = _take_lock(lock, shared=shared)
    if lock in (Lock.CLAIMS, Lock.MIGRATIONS):
        return f"SELECT {take}"
    return f"SELECT {_take_lock(Lock.MIGRATIONS, shared=True)}, {take}"


def _take_lock(lock: Lock, *, shared: bool) -> str:
    function = f"pg_advisory_xact_lock{'_shared' if shared else ''}"
    return f"pg_catalog.{function}({LOCK_NAMESPACE}, {lock:d})"


async def run(connection: Connection, statement: Sql, parameters: Mapping[str, Any]) -> list[Row]:
    """Run a statement and return its rows."""
    cursor = await connection.execute(statement.pyformat, parameters)
    return await cursor.fetchall() if cursor.description else []


async def require_known_schema(connection: Connection) -> None:
    """Raise NewerSchema if a newer version has migrated the database."""
    (row,) = await (await connection.execute(f"SELECT {NEWEST_MIGRATION} AS number")).fetchall()
    require_known("postgres", row["number"])


def is_closed_by_server(connection: Connection) -> bool:
    """Return whether the server has closed an idle connection: it sends nothing else on one."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
