"""The partitions of payloads and of the audit trail: created ahead, and dropped behind.

A partition is created and then attached: PARTITION OF would block inserts. Both tables have a
default partition, for rows that come when no other was created in time. While it has rows of a
period, the period can have no partition of its own. They are moved when it is over: no insert then
waits for the move.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from onceward.errors import StoreBlocked
from onceward.model.weeks import WEEK, Week
from onceward.store.locks import Lock
from onceward.store.postgres.blockers import blockers_text
from onceward.store.postgres.connections import (
    Connection,
    lock_statement,
    require_known_schema,
)

LOCK_SECONDS: Final = 0.2
"""Timeout for the lock of a table: while a transaction waits for it, receivers wait behind it."""
_LOCK_TIMEOUT: Final = f"SET LOCAL lock_timeout = '{LOCK_SECONDS * 1000:.0f}ms'"
_NO_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = 0"
_LEDGER_LOCK_SECONDS: Final = 5

_PARTITIONS: Final = r"""
    SELECT name, bound[1]::timestamptz AS starts, bound[2]::timestamptz AS ends
    FROM (
        SELECT
            c.relname AS name,
            regexp_match(
                pg_get_expr(c.relpartbound, c.oid),
                'FROM \(''?(?:MINVALUE|([^'']+))''?\) TO \(''([^'']+)''\)'
            ) AS bound
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = %s::regclass
    ) AS partitions
    WHERE bound IS NOT NULL
    ORDER BY ends
"""
# One branch for each partial index.
_NEEDED: Final = SQL("""
    SELECT event FROM onceward.jobs
    WHERE status = 'failed' AND received_at >= {starts} AND received_at < {ends}
    UNION SELECT event FROM onceward.jobs
    WHERE status = 'queued' AND NOT parked AND received_at >= {starts} AND received_at < {ends}
    UNION SELECT event FROM onceward.jobs
    WHERE status = 'queued' AND parked AND received_at >= {starts} AND received_at < {ends}
    UNION SELECT id FROM onceward.events
    WHERE final_state = 'review' AND received_at >= {starts} AND received_at < {ends}
""")


@dataclass(frozen=True, slots=True)
class PartitionedTable:
    """A partitioned table: its column of time, its periods, and how many of them are made ahead."""

    name: str
    column: str
    start_of: Callable[[datetime], datetime]
    next_of: Callable[[datetime], datetime]
    ahead: int
    is_append_only: bool = False

    def periods_from(self, time: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield the start and the end of the period of a time, and of all that follow."""
        start = self.start_of(time)
        while True:
            end = self.next_of(start)
            yield start, end
            start = end


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition with its bounds. The first one may have no start."""

    name: str
    starts: datetime | None
    ends: datetime


def _month(time: datetime) -> datetime:
    day = time.astimezone(UTC)
    return datetime(day.year, day.month, 1, tzinfo=UTC)


PAYLOADS: Final = PartitionedTable(
    "payloads",
    "received_at",
    start_of=lambda time: Week.of(time).starts_at,
    next_of=lambda start: start + WEEK,
    ahead=4,
)
AUDIT: Final = PartitionedTable(
    "audit",
    "at",
    start_of=_month,
    next_of=lambda start: _month(start + timedelta(days=31)),
    ahead=2,
    is_append_only=True,
)


async def partitions(connection: Connection, table: PartitionedTable) -> list[Partition]:
    """Return the partitions of a table without the default one, oldest first."""
    cursor = await connection.execute(_PARTITIONS, (f"onceward.{table.name}",))
    return [Partition(**row) for row in await cursor.fetchall()]


async def create_ahead(connection: Connection, table: PartitionedTable, now: datetime) -> list[str]:
    """Create the partitions of this period and of those ahead. Return the names of new ones."""
    existing = {each.starts for each in await partitions(connection, table)}
    covered_until = max((each.ends for each in await partitions(connection, table)), default=now)
    created: list[str] = []
    periods = table.periods_from(now)
    for _ in range(table.ahead + 1):
        start, end = next(periods)
        # The first partition of the audit trail has no start.
        is_covered = start in existing or (table.is_append_only and end <= covered_until)
        if not is_covered and not await _default_has(connection, table, start, end):
            created += await _create(connection, table, start, end)
    return created


async def empty_default(
    connection: Connection, table: PartitionedTable, now: datetime
) -> list[str]:
    """Move what the default partition has of past periods to partitions of their own."""
    column, default = Identifier(table.column), _qualified(f"{table.name}_default")
    oldest = SQL("SELECT min({}) AS oldest FROM {} WHERE {} < {}")
    current = table.start_of(now)
    moved: list[str] = []
    while True:
        cursor = await connection.execute(
            oldest.format(column, default, column, Literal(current)), prepare=False
        )
        row = await cursor.fetchone()
        if row is None or row["oldest"] is None:
            return moved
        start, end = next(table.periods_from(row["oldest"]))
        created = await _create(connection, table, start, end, move=True)
        if not created:
            name = f"onceward.{table.name}_{start:%Y%m%d}"
            raise StoreBlocked(
                f"The default partition has rows of {name}, which exists. If it is not attached to "
                f"onceward.{table.name}, attach it or drop it; the next maintenance moves the rows"
            )
        moved += created


async def default_periods(
    connection: Connection, table: PartitionedTable, before: datetime
) -> set[datetime | None]:
    """Return the starts of the periods in the default partition that ended before a time."""
    column, default = Identifier(table.column), _qualified(f"{table.name}_default")
    query = SQL("SELECT DISTINCT date_trunc('day', {}) AS day FROM {} WHERE {} < {}")
    cursor = await connection.execute(
        query.format(column, default, column, Literal(before)), prepare=False
    )
    starts = {table.start_of(row["day"]) for row in await cursor.fetchall()}
    return {start for start in starts if table.next_of(start) <= before}


async def _default_has(
    connection: Connection, table: PartitionedTable, start: datetime, end: datetime
) -> bool:
    query = SQL("SELECT 1 FROM {} WHERE {} >= {} AND {} < {} LIMIT 1")
    column, default = Identifier(table.column), _qualified(f"{table.name}_default")
    cursor = await connection.execute(
        query.format(default, column, Literal(start), column, Literal(end)), prepare=False
    )
    return await cursor.fetchone() is not None


async def _create(
    connection: Connection,
    table: PartitionedTable,
    start: datetime,
    end: datetime,
    *,
    move: bool = False,
) -> list[str]:
    """Create and attach a partition, with the rows that the default one has of it.

    Return its name, unless it exists.
    """
    name = f"{table.name}_{start:%Y%m%d}"
    async with locked(connection, Lock.PARTITIONS, table):
        if await _exists(connection, name):  # another process was faster
            return []
        await _create_like(connection, table, name)
        if move:
            await _move_from_default(connection, table, name, start, end)
        await _attach(connection, table, name, start, end)
    return [name]


async def _exists(connection: Connection, name: str) -> bool:
    cursor = await connection.execute("SELECT to_regclass(%s) AS oid", (f"onceward.{name}",))
    row = await cursor.fetchone()
    return row is not None and row["oid"] is not None


async def _create_like(connection: Connection, table: PartitionedTable, name: str) -> None:
    like = SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING IDENTITY)")
    await connection.execute(like.format(_qualified(name), _qualified(table.name)))
    if table.is_append_only:
        trigger = SQL(
            "CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {} "
            "FOR EACH STATEMENT EXECUTE FUNCTION onceward.reject_audit_change()"
        )
        await connection.execute(trigger.format(_qualified(name)))


async def _move_from_default(
    connection: Connection, table: PartitionedTable, name: str, start: datetime, end: datetime
) -> None:
    default, column = _qualified(f"{table.name}_default"), Identifier(table.column)
    move = SQL(
        "WITH moved AS (DELETE FROM {} WHERE {} >= {} AND {} < {} RETURNING *) "
        "INSERT INTO {} SELECT * FROM moved"
    ).format(default, column, Literal(start), column, Literal(end), _qualified(name))
    if table.is_append_only:
        await connection.execute(SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(default))
    await connection.execute(_NO_LOCK_TIMEOUT)
    await connection.execute(move)
    await connection.execute(_LOCK_TIMEOUT)
    if table.is_append_only:
        await connection.execute(SQL("ALTER TABLE {} ENABLE TRIGGER USER").format(default))


async def _attach(
    connection: Connection, table: PartitionedTable, name: str, start: datetime, end: datetime
) -> None:
    attach = SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})")
    await connection.execute(
        attach.format(_qualified(table.name), _qualified(name), Literal(start), Literal(end))
    )


async def has_unneeded(connection: Connection, partition: Partition) -> bool:
    """Return whether a partition of payloads has one that no queued or failed job needs."""
    query = SQL("SELECT 1 FROM {} WHERE event NOT IN ({}) LIMIT 1")
    cursor = await connection.execute(
        query.format(_qualified(partition.name), _needed(partition)), prepare=False
    )
    return await cursor.fetchone() is not None


async def keep_needed(connection: Connection, partition: Partition) -> int:
    """Copy the payloads that a queued or failed job needs to a table of their own.

    Return their number. In the transaction that replaces the partition: no job may begin to need
    its payload in between.
    """
    kept = _qualified(f"{partition.name}_kept")
    await _create_like(connection, PAYLOADS, f"{partition.name}_kept")
    copy = SQL("INSERT INTO {} SELECT * FROM {} WHERE event IN ({})")
    cursor = await connection.execute(
        copy.format(kept, _qualified(partition.name), _needed(partition))
    )
    return cursor.rowcount


async def replace(connection: Connection, partition: Partition, *, kept: int) -> None:
    """Drop a partition of payloads. The table of those to keep takes its place, if it has any.

    While this transaction is open, nobody can read or record a payload: it is the last step.
    """
    await drop(connection, PAYLOADS, partition.name)
    kept_table = _qualified(f"{partition.name}_kept")
    if not kept or partition.starts is None:
        await connection.execute(SQL("DROP TABLE {}").format(kept_table))
        return
    rename = SQL("ALTER TABLE {} RENAME TO {}")
    await connection.execute(rename.format(kept_table, Identifier(partition.name)))
    await _attach(connection, PAYLOADS, partition.name, partition.starts, partition.ends)


async def drop(connection: Connection, table: PartitionedTable, name: str) -> None:
    """Drop a partition. The lock of the table comes first, in the order of the receivers."""
    await connection.execute(_LOCK_TIMEOUT)
    parent, partition = _qualified(table.name), _qualified(name)
    await connection.execute(SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(parent))
    await connection.execute(SQL("ALTER TABLE {} DETACH PARTITION {}").format(parent, partition))
    await connection.execute(SQL("DROP TABLE {}").format(partition))


@asynccontextmanager
async def locked(
    connection: Connection, lock: Lock, table: PartitionedTable
) -> AsyncIterator[None]:
    """Begin a transaction with an advisory lock, in which table locks have a short timeout.

    Raise StoreBlocked, with who holds the table, if another transaction holds one of them.
    """
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{_LEDGER_LOCK_SECONDS}s'")
            await connection.execute(lock_statement(lock).encode())
            await require_known_schema(connection)
            await connection.execute(_LOCK_TIMEOUT)
            yield
    except psycopg.errors.LockNotAvailable as error:
        blockers = await blockers_text(connection, lock, LOCK_SECONDS, table=table.name)
        raise StoreBlocked(
            "A partition was neither created nor dropped: another transaction, such as a dump, "
            f"uses the table. {blockers}Nothing was changed; the next maintenance tries again"
        ) from error


def _needed(partition: Partition) -> Composed:
    return _NEEDED.format(starts=Literal(partition.starts), ends=Literal(partition.ends))


def _qualified(name: str) -> Identifier:
    return Identifier("onceward", name)
