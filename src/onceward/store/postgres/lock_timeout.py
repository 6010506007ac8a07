"""Advisory locks with a timeout, and an error that says who holds one."""

from __future__ import annotations

from typing import Final

import psycopg

from onceward.errors import StoreBlocked
from onceward.store.locks import Lock
from onceward.store.postgres.connections import (
    Connection,
    lock_statement,
    require_known_schema,
)

LOCK_TIMEOUT_SECONDS: Final = 5
"""Timeout of a transaction for its lock."""

CLAIMS_TIMEOUT_SECONDS: Final = 2
"""Limit of an operator's action for each row lock, and for its pauses, while no worker can claim.

A settlement that holds a row may belong to a frozen process, and so may the action itself.
"""

SETUP_TIMEOUT_SECONDS: Final = 60
"""Timeout for the `at_start` functions of another process, which may take long."""

_PURPOSES: Final = {
    Lock.CLAIMS: "claiming and cancelling jobs",
    Lock.SETUP: "the at_start functions of the app",
    Lock.REGISTRY: "registering sources and handlers, and storing tokens and secrets",
    Lock.REJECTIONS: "storing rejected requests",
    Lock.LEDGER: "operators' actions and the purge",
}


async def take_lock(connection: Connection, lock: Lock) -> None:
    """Take a lock in the open transaction. Raise StoreBlocked after LOCK_TIMEOUT_SECONDS.

    Raise NewerSchema if a newer version has migrated the database.
    """
    limit = f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'"
    locks, then = lock_statement(lock), "SET LOCAL lock_timeout = 0"
    if lock is Lock.CLAIMS:
        locks = f"{lock_statement(Lock.MIGRATIONS, shared=True)}; {locks}"
        then = (
            f"SET LOCAL lock_timeout = '{CLAIMS_TIMEOUT_SECONDS}s'; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{CLAIMS_TIMEOUT_SECONDS}s'"
        )
    try:
        await connection.execute(f"{limit}; {locks}; {then}".encode())
    except psycopg.errors.LockNotAvailable as error:
        raise StoreBlocked(held_too_long(lock, LOCK_TIMEOUT_SECONDS)) from error
    await require_known_schema(connection)  # no migration runs beside the lock


def held_too_long(lock: Lock, seconds: int) -> str:
    """Return the error text for a lock that another process did not release in time."""
    return (
        f"Another process held the lock for {_PURPOSES[lock]} for {seconds} seconds, and nothing "
        "was changed. Try again. If it lasts, find the process in pg_stat_activity (application "
        "onceward, wait_event or a transaction that is open for long)"
    )
