"""The transactions that keep maintenance or a migration from the lock of a table, for its error."""

from __future__ import annotations

from datetime import UTC
from typing import Final

import psycopg

from onceward.ports import Row
from onceward.runtime.redact import printable
from onceward.store.locks import Lock
from onceward.store.postgres.connections import LOCK_NAMESPACE, Connection

_SHOWN: Final = 3
# A transaction that began after the wait is not what the wait was for: receivers go on behind it.
# Sessions of other roles may show no times. A prepared transaction has no process. No query text.
_BLOCKERS: Final = """
    SELECT
        l.pid, a.usename AS role, a.state, a.xact_start AS since,
        COALESCE(NULLIF(a.application_name, ''), a.backend_type) AS application
    FROM (
        SELECT DISTINCT pid FROM pg_locks
        WHERE granted AND pid IS DISTINCT FROM pg_backend_pid()
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (
            locktype = 'relation' AND relation IN (
                SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
                WHERE n.nspname = 'onceward' AND (
                    %(table)s::text IS NULL
                    OR to_regclass(%(table)s::text) IN (c.oid, i.inhparent)
                )
            )
            OR locktype = 'advisory' AND classid = %(namespace)s AND objid = %(lock)s
        )
    ) AS l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE COALESCE(a.xact_start < clock_timestamp() - %(seconds)s * interval '1 second', true)
    ORDER BY a.xact_start NULLS FIRST
    LIMIT %(limit)s
"""


async def blockers_text(
    connection: Connection, lock: Lock, seconds: float, *, table: str | None = None
) -> str:
    """Return a sentence about who has held a table, or the lock, for some seconds; or nothing.

    Without a `table`, it is about all of Onceward's tables.
    """
    parameters = {
        "table": f"onceward.{table}" if table else None,
        "namespace": LOCK_NAMESPACE,
        "lock": int(lock),
        "seconds": seconds,
        "limit": _SHOWN,
    }
    try:
        cursor = await connection.execute(_BLOCKERS, parameters, prepare=False)
        rows = await cursor.fetchall()
    except psycopg.Error:  # the error about the lock is worth more
        return ""
    return f"It is held by {' and '.join(map(_blocker, rows))}. " if rows else ""


def _blocker(row: Row) -> str:
    if row["pid"] is None:
        return "a prepared transaction (see pg_prepared_xacts)"
    facts = [printable(row["application"] or "unknown application")]
    if row["role"]:
        facts.append(f"role {printable(row['role'])}")
    if row["state"]:
        facts.append(row["state"])
    if row["since"]:
        facts.append(f"since {row['since'].astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    return f"process {row['pid']} ({', '.join(facts)})"
