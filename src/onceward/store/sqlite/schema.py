"""The tables in the file: which migrations they have, and how pending ones are applied."""

from __future__ import annotations

import sqlite3
from typing import Final

from onceward.errors import ConfigurationError, OncewardError
from onceward.store.migrate import (
    Migration,
    failed,
    failed_as_foreign,
    failed_as_present,
    require_known,
)
from onceward.store.sqlite import connection_thread as thread

_MIGRATIONS_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS onceward_migrations (
        number INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    )
"""

# Where a claim keeps what it has looked at, in the memory of its connection.
_WORK_TABLES: Final = """
    CREATE TEMP TABLE onceward_abandoned (
        id INTEGER PRIMARY KEY, solo INTEGER, worker TEXT, died_at INTEGER, may_have_started INTEGER
    );
    CREATE TEMP TABLE onceward_in_flight (handler INTEGER, ordering_key TEXT);
    CREATE TEMP TABLE onceward_allowed (handler INTEGER, position INTEGER, allowed INTEGER);
    CREATE TEMP TABLE onceward_seen (
        id INTEGER PRIMARY KEY, handler INTEGER, position INTEGER, allowed INTEGER, retried INTEGER,
        event INTEGER, available_at INTEGER, ordering_key TEXT, is_blocked INTEGER
    );
    CREATE TEMP TABLE onceward_chosen (
        position INTEGER PRIMARY KEY, id INTEGER, handler INTEGER, ordering_key TEXT
    );
"""


def create_work_tables(connection: sqlite3.Connection) -> None:
    """Create the temporary tables that a claim uses, on a new connection."""
    connection.executescript(_WORK_TABLES)


def _has_migrations_table(connection: sqlite3.Connection) -> bool:
    statement = "SELECT 1 FROM sqlite_master WHERE name = 'onceward_migrations'"
    return connection.execute(statement).fetchone() is not None


def load_applied(connection: sqlite3.Connection) -> dict[int, str]:
    """Return the names of the applied migrations, by number."""
    if not _has_migrations_table(connection):
        return {}
    return dict(connection.execute("SELECT number, name FROM onceward_migrations").fetchall())


def require_known_schema(connection: sqlite3.Connection) -> None:
    """Raise NewerSchema if a newer version has migrated the file.

    No migration can begin before a write transaction ends in which this is called.
    """
    (number,) = connection.execute("SELECT max(number) FROM onceward_migrations").fetchone()
    require_known("sqlite", number)


def apply(migration: Migration, path: str, connection: sqlite3.Connection) -> bool:
    """Apply a migration. Return False if another process has applied it meanwhile."""
    insert = f"INSERT INTO onceward_migrations (number, name) VALUES ({migration.number}, '{migration.name}')"  # noqa: S608, E501 - the package's own file name
    script = f"BEGIN IMMEDIATE; {_MIGRATIONS_TABLE}; {insert}; {migration.text}; COMMIT"
    try:
        connection.executescript(script)
    except sqlite3.Error as error:
        thread.rollback(connection)
        is_duplicate = isinstance(error, sqlite3.IntegrityError)
        if is_duplicate and migration.number in load_applied(connection):
            return False
        has_table = _has_migrations_table(connection)
        raise _migration_failure(migration, error, path, has_table=has_table) from error
    return True


def _migration_failure(
    migration: Migration, error: sqlite3.Error, path: str, *, has_table: bool
) -> OncewardError:
    reason = thread.error_reason(error)
    # SQLite has one error code for all mistakes in a statement.
    if "already exists" in reason or reason.startswith("duplicate column name"):
        if not has_table:
            instead = "another file, such as sqlite:///other.db"
            text = failed_as_foreign(path, reason, "onceward_migrations", instead)
            return ConfigurationError(text)
        return ConfigurationError(failed_as_present(migration, reason, "onceward_migrations"))
    return type(thread.translate_error(error))(failed(migration, reason))
