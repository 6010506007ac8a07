"""The schema ``onceward``: which migrations it has, and how pending ones are applied."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import psycopg
from psycopg.sql import SQL, Identifier

from onceward.errors import ConfigurationError, OncewardError, StoreBlocked
from onceward.ports import EVERY_DUTY, Duty
from onceward.runtime.log_fields import LogFields
from onceward.store.locks import Lock
from onceward.store.migrate import (
    Migration,
    check_applied,
    failed,
    failed_as_foreign,
    failed_as_present,
    pending,
    require_known,
    require_none_pending,
)
from onceward.store.postgres.blockers import blockers_text
from onceward.store.postgres.connections import (
    NEWEST_MIGRATION,
    Connection,
    lock_statement,
    translate_error,
)
from onceward.store.postgres.privileges import (
    Access,
    lacking_error,
    load_access,
    migrate_error,
    require_access,
)

_log = logging.getLogger("onceward.store")

T = TypeVar("T")

MIGRATION_LOCK_SECONDS: Final = 60.0
"""Time for a migration to get its locks, over all tries."""
LOCK_TRY_SECONDS: Final = 0.5
"""Timeout of one try for a lock: while it waits, it blocks everybody behind it.

It is shorter than the default deadlock_timeout, 1 s, so that no other transaction is ended for a
deadlock.
"""
PAUSE_SECONDS: Final = 0.5
"""The pause between two tries, in which others go on."""
REPORT_INTERVAL_SECONDS: Final = 10.0
"""How often the log says who has the locks."""

_ALREADY_PRESENT: Final = (
    psycopg.errors.DuplicateColumn,
    psycopg.errors.DuplicateFunction,
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateTable,
)
# CREATE SCHEMA IF NOT EXISTS would need CREATE on the database even if the schema exists.
_MIGRATIONS_TABLE: Final = """
    DO $$ BEGIN
        IF to_regnamespace('onceward') IS NULL THEN CREATE SCHEMA onceward; END IF;
    END $$;
    CREATE TABLE IF NOT EXISTS onceward.migrations (
        number integer PRIMARY KEY,
        name text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""


# A restore in place gives each table another file, and keeps the connections.
_ROUTES_FILE: Final = (
    "SELECT pg_relation_filenode(to_regclass('onceward.routes')) AS oid, "
    f"{NEWEST_MIGRATION} AS newest"
)
# The first one stops recording and claiming. A parent's partitions are locked with it. Other tables
# in the schema may belong to somebody else.
_TABLES: Final = """
    SELECT c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'onceward' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND pg_has_role(c.relowner, 'USAGE')
    ORDER BY c.relname <> 'migrations', c.relname
"""
_BUSY: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


async def apply_pending(connection: Connection, duties: Duty = EVERY_DUTY) -> list[str]:
    """Apply pending migrations, all or none, and return their labels.

    Raise ConfigurationError if the role may neither migrate nor do its duties, NewerSchema, or
    StoreBlocked if others keep the locks.

    Without pending ones no lock is needed: the `at_start` functions of another process may hold it
    for long, and a process that starts on a current schema need not wait for them.
    """
    return await _with_lock_retries(connection, partial(_apply_pending, connection, duties))


async def _apply_pending(connection: Connection, duties: Duty) -> list[str]:
    if not await _pending(connection, await load_access(connection, duties)):
        return []
    await connection.execute(lock_statement(Lock.MIGRATIONS))
    access = await load_access(connection, duties)
    lacking = await _pending(connection, access)
    labels = [migration.label for migration in lacking]
    if lacking:
        await _lock_tables(connection)
    for migration in lacking:
        try:
            await _apply(connection, migration)
        except _BUSY:
            raise
        except psycopg.errors.InsufficientPrivilege as error:
            raise migrate_error(access, labels, _reason(error)) from error
        except psycopg.Error as error:
            if isinstance(error, _ALREADY_PRESENT) and not access.has_migrations:
                raise _foreign_schema(connection.info.dbname, error) from error
            raise _failure(migration, error) from error
    return labels


async def _lock_tables(connection: Connection) -> None:
    """Lock all tables before one is changed: no other transaction can then be in the way."""
    rows = await (await connection.execute(_TABLES)).fetchall()
    if rows:
        tables = SQL(", ").join(Identifier("onceward", row["name"]) for row in rows)
        await connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(tables))


async def require_migrated(connection: Connection, url: str, duties: Duty = EVERY_DUTY) -> None:
    """Raise MigrationsPending, which names the database by `url`, if it lacks migrations."""

    async def load() -> Sequence[Migration]:
        return await _pending(connection, await load_access(connection, duties))

    lacking = await _with_lock_retries(connection, load)
    require_none_pending(f"The database {url}", lacking)


async def routes_file(connection: Connection) -> int:
    """Return the file of the routes, or 0 without one. Raise NewerSchema. One message for both."""
    row = await (await connection.execute(_ROUTES_FILE)).fetchone()
    require_known("postgres", row["newest"] if row else None)
    return (row["oid"] or 0) if row else 0


async def require_privileges(connection: Connection, duties: Duty) -> None:
    """Raise ConfigurationError if the role may not do everything that the duties need."""
    require_access(await load_access(connection, duties))


async def _with_lock_retries(connection: Connection, step: Callable[[], Awaitable[T]]) -> T:
    """Run a step in a transaction. While others have its locks, log who, and try again.

    Raise StoreBlocked, which names them, after MIGRATION_LOCK_SECONDS.
    """
    clock = asyncio.get_running_loop().time
    started, reported = clock(), -math.inf
    while True:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TRY_SECONDS}s'")
                return await step()
        except _BUSY as error:
            blockers = await blockers_text(connection, Lock.MIGRATIONS, LOCK_TRY_SECONDS)
            if clock() - started >= MIGRATION_LOCK_SECONDS:
                raise StoreBlocked(
                    "Another process kept the lock of Onceward's tables for "
                    f"{MIGRATION_LOCK_SECONDS:g} seconds, and nothing was changed. {blockers}Stop "
                    "it, or wait for it, and start again"
                ) from error
        if clock() - reported >= REPORT_INTERVAL_SECONDS:
            reported = clock()
            message = "waiting for the lock of Onceward's tables. %s"
            _log.warning(message, blockers.strip(), extra=LogFields(error=blockers.strip()))
        await asyncio.sleep(PAUSE_SECONDS)


async def _pending(connection: Connection, access: Access) -> Sequence[Migration]:
    if not access.has_migrations:
        return pending("postgres", ())
    if not access.can_read_migrations:
        raise lacking_error(access)
    cursor = await connection.execute("SELECT number, name FROM onceward.migrations")
    applied = {row["number"]: row["name"] for row in await cursor.fetchall()}
    check_applied("postgres", applied)
    return pending("postgres", applied)


async def _apply(connection: Connection, migration: Migration) -> None:
    await connection.execute(_MIGRATIONS_TABLE)
    await connection.execute(migration.text.encode())
    await connection.execute(
        "INSERT INTO onceward.migrations (number, name) VALUES (%s, %s)",
        (migration.number, migration.name),
    )


def _foreign_schema(database: str, error: psycopg.Error) -> ConfigurationError:
    name = f"The schema onceward of the database {database}"
    instead = "another database, such as postgresql://…/other"
    return ConfigurationError(
        failed_as_foreign(name, _reason(error), "onceward.migrations", instead)
    )


def _failure(migration: Migration, error: psycopg.Error) -> OncewardError:
    reason = _reason(error)
    if isinstance(error, _ALREADY_PRESENT):
        return ConfigurationError(failed_as_present(migration, reason, "onceward.migrations"))
    return type(translate_error(error, is_sent=False))(failed(migration, reason))


def _reason(error: psycopg.Error) -> str:
    return str(translate_error(error, is_sent=False))
