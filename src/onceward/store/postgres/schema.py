"""The schema ``onceward``: which migrations it has, and how pending ones are applied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import psycopg

from onceward.errors import ConfigurationError, OncewardError, StoreBlocked
from onceward.ports import EVERY_DUTY, Duty
from onceward.store.locks import Lock
from onceward.store.migrate import (
    Migration,
    check_applied,
    failed,
    failed_as_foreign,
    failed_as_present,
    pending,
    require_none_pending,
)
from onceward.store.postgres.connections import Connection, lock_statement, translate_error
from onceward.store.postgres.privileges import (
    Access,
    lacking_error,
    load_access,
    migrate_error,
    require_access,
)

MIGRATION_LOCK_SECONDS: Final = 10
"""Timeout of a migration for a lock: while it waits, it blocks everybody behind it."""

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


_LOCK_HOLDERS: Final = """
    SELECT DISTINCT l.pid FROM pg_locks l
    JOIN pg_class c ON c.oid = l.relation
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'onceward' AND l.granted AND l.mode = 'AccessExclusiveLock'
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY l.pid
"""


async def apply_pending(connection: Connection, duties: Duty = EVERY_DUTY) -> list[str]:
    """Apply pending migrations, all or none, and return their labels.

    Raise ConfigurationError if the role may neither migrate nor do its duties.

    Without pending ones no lock is needed: the `at_start` functions of another process may hold it
    for long, and a process that starts on a current schema need not wait for them.
    """
    async with _transaction(connection):
        if not await _pending(connection, await load_access(connection, duties)):
            return []
        await _lock(connection)
        access = await load_access(connection, duties)
        lacking = await _pending(connection, access)
        labels = [migration.label for migration in lacking]
        for migration in lacking:
            try:
                await _apply(connection, migration)
            except psycopg.errors.InsufficientPrivilege as error:
                raise migrate_error(access, labels, _reason(error)) from error
            except psycopg.Error as error:
                if isinstance(error, _ALREADY_PRESENT) and not access.has_migrations:
                    raise _foreign_schema(connection.info.dbname, error) from error
                raise _failure(migration, error) from error
    return labels


async def require_migrated(connection: Connection, url: str, duties: Duty = EVERY_DUTY) -> None:
    """Raise MigrationsPending, which names the database by `url`, if it lacks migrations."""
    async with _transaction(connection):
        lacking = await _pending(connection, await load_access(connection, duties))
    require_none_pending(f"The database {url}", lacking)


async def require_privileges(connection: Connection, duties: Duty) -> None:
    """Raise ConfigurationError if the role may not do everything that the duties need."""
    require_access(await load_access(connection, duties))


@asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    """Begin a transaction that does not wait long for locks.

    Raise StoreBlocked, which names the processes that hold the tables.
    """
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{MIGRATION_LOCK_SECONDS}s'")
            yield
    except psycopg.errors.LockNotAvailable as error:
        cursor = await connection.execute(_LOCK_HOLDERS)
        pids = ", ".join(str(row["pid"]) for row in await cursor.fetchall())
        msg = (
            f"Another transaction locked onceward's tables for {MIGRATION_LOCK_SECONDS} seconds"
            f"{f' (pid {pids})' if pids else ''}. End it, or start again"
        )
        raise StoreBlocked(msg) from error


async def _lock(connection: Connection) -> None:
    try:
        await connection.execute(lock_statement(Lock.MIGRATIONS))
    except psycopg.errors.LockNotAvailable as error:
        msg = (
            f"Another process held the lock of migrations for {MIGRATION_LOCK_SECONDS} seconds, "
            "and nothing was changed. Wait until it has migrated, and start again"
        )
        raise StoreBlocked(msg) from error


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
    if isinstance(error, psycopg.errors.LockNotAvailable):
        reason += (
            f": other transactions used its tables for {MIGRATION_LOCK_SECONDS} seconds. Nothing "
            "was changed; start again"
        )
        return StoreBlocked(failed(migration, reason))
    return type(translate_error(error, is_sent=False))(failed(migration, reason))


def _reason(error: psycopg.Error) -> str:
    return str(translate_error(error, is_sent=False))
