"""Maintenance on PostgreSQL: one elected process creates partitions ahead and drops old ones."""

from __future__ import annotations

import asyncio
import functools
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Final, TypeVar

import psycopg

from onceward.errors import StoreBlocked
from onceward.model.admin import OperatorAction
from onceward.model.retention import DroppedPayloads, Election
from onceward.model.weeks import Week
from onceward.ports import Row
from onceward.store.archives import require_archived
from onceward.store.audit import add_audit_entry
from onceward.store.base import LedgerTransaction
from onceward.store.locks import Lock
from onceward.store.maintenance import SqlMaintenance
from onceward.store.postgres import partitions
from onceward.store.postgres.connections import LOCK_NAMESPACE, Connection, ledger_error
from onceward.store.postgres.partitions import AUDIT, PAYLOADS, Partition
from onceward.store.postgres.pool import ConnectionPool
from onceward.store.postgres.pool import drop as drop_connection
from onceward.store.postgres.time_limit import RESPONSE_SECONDS, time_limit

T = TypeVar("T")

LOCK_TRIES: Final = 5
"""Tries to get the lock of a table in one maintenance. A dump has it for as long as it runs."""
LOCK_PAUSE_SECONDS: Final = 1.0
DROP_ACTION: Final = "drop_partition"
"""The action in the audit entry of a dropped partition."""

ANOTHER_PROCESS: Final = "another process does the maintenance now"
NOT_OWNER: Final = (
    "the role {role} does not own the tables. Run `onceward maintain` as {owner} every hour, for "
    "example from cron"
)
_ELECT: Final = f"""
    SELECT
        current_user AS role, pg_get_userbyid(c.relowner) AS owner,
        pg_has_role(c.relowner, 'USAGE') AS is_owner,
        CASE WHEN pg_has_role(c.relowner, 'USAGE')
            THEN pg_try_advisory_lock({LOCK_NAMESPACE}, {Lock.MAINTENANCE:d}) END AS has_lock
    FROM pg_class c WHERE c.oid = 'onceward.payloads'::regclass
"""  # noqa: S608 - no outside data


class PostgresMaintenance(SqlMaintenance):
    """The part of the port `MaintenanceStore` that is about partitions."""

    _election_session: ConnectionPool
    _maintenance_pool: ConnectionPool

    @abstractmethod
    def _statements_on(self, connection: Connection) -> LedgerTransaction:
        """Return the named statements, to run in the open transaction of a connection."""

    def _stored_time(self, time: datetime) -> datetime:
        return time

    def _stored_ids(self, ids: list[int]) -> Any:
        return ids

    @asynccontextmanager
    async def elect(self) -> AsyncIterator[Election]:
        """Try to become the only process that does the maintenance, until the context ends.

        The lock belongs to a session that is closed at the end. If the session is lost, another
        process may start: no step relies on being the only one.
        """
        async with self._election_session.use() as connection:
            try:
                yield _election(await _elect(connection))
                await _resign(connection)
            finally:
                drop_connection(connection)

    async def make_partitions(self) -> Sequence[str]:
        """Create the partitions of the time ahead, and move what was recorded without one."""
        now = await self.ledger_time()
        made: list[str] = []
        for step in (partitions.create_ahead, partitions.empty_default):
            for table in (PAYLOADS, AUDIT):
                make = functools.partial(step, table=table, now=now)
                made += await self._retry_if_blocked(make)
        return made

    async def expired_weeks(self, before: datetime, *, with_default: bool = False) -> list[Week]:
        """Return the weeks, oldest first, that ended before a time and have payloads to drop."""
        async with self._maintenance_pool.use_for_ledger(limited=False) as connection:
            starts = {
                each.starts
                for each in await partitions.partitions(connection, PAYLOADS)
                if each.ends <= before and await partitions.has_unneeded(connection, each)
            }
            if with_default:
                starts |= await partitions.default_periods(connection, PAYLOADS, before)
        weeks = sorted(Week.of(start) for start in starts if start is not None)
        return await self._without_restored(weeks, before)

    async def drop_payloads(
        self, week: Week, action: OperatorAction, *, must_be_archived: bool = False
    ) -> DroppedPayloads:
        """Drop the payloads of a week, except those that a queued or failed job needs.

        Raise NotArchived if all must be in recorded files and one is not, and StoreBlocked if
        another transaction uses the table for long.
        """
        partition = Partition(f"payloads_{week.label}", week.starts_at, week.ends_at)

        async def replace(connection: Connection) -> int:
            async with partitions.locked(connection, Lock.LEDGER, PAYLOADS):
                if must_be_archived:
                    await require_archived(self._statements_on(connection), week)
                kept = await partitions.keep_needed(connection, partition)
                await self._add_entry(connection, action, f"payloads:{week.label}")
                await partitions.replace(connection, partition, kept=kept)
                self._failpoints.reach("purge.written")
            self._failpoints.reach("purge.committed")
            return kept

        return DroppedPayloads(None, await self._retry_if_blocked(replace))

    async def expired_audit(self, before: datetime) -> list[str]:
        """Return the partitions of the audit trail that ended before a time, oldest first."""
        async with self._maintenance_pool.use_for_ledger() as connection:
            every = await partitions.partitions(connection, AUDIT)
        return [each.name for each in every if each.ends <= before]

    async def drop_audit(self, part: str, before: datetime, action: OperatorAction) -> None:
        """Drop a partition of the audit trail. The entry about it goes to the current one."""
        del before  # the whole partition is from before it

        async def drop_partition(connection: Connection) -> None:
            async with partitions.locked(connection, Lock.LEDGER, AUDIT):
                await self._add_entry(connection, action, f"audit:{part.removeprefix('audit_')}")
                await partitions.drop(connection, AUDIT, part)

        await self._retry_if_blocked(drop_partition)

    async def release_space(self) -> None:
        """Do nothing: autovacuum makes the space of deleted rows usable again."""

    async def _add_entry(
        self, connection: Connection, action: OperatorAction, subject: str
    ) -> None:
        await add_audit_entry(self._statements_on(connection), action, DROP_ACTION, subject)

    async def _retry_if_blocked(self, step: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a step that needs the lock of a table, a few times if it does not get it."""
        for remaining in reversed(range(LOCK_TRIES)):
            try:
                async with self._maintenance_pool.use_for_ledger(limited=False) as connection:
                    return await step(connection)
            except StoreBlocked:
                if not remaining:
                    raise
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
        raise AssertionError("unreachable: the last try returns or raises")


async def _elect(connection: Connection) -> Row:
    try:
        rows = await (await connection.execute(_ELECT)).fetchall()
    except psycopg.Error as error:
        raise ledger_error(error) from error
    return rows[0]


async def _resign(connection: Connection) -> None:
    """Release the lock: the server may notice the end of the session late."""
    with suppress(psycopg.Error), time_limit(connection, RESPONSE_SECONDS):
        await connection.execute("SELECT pg_advisory_unlock_all()")


def _election(row: Row) -> Election:
    if not row["is_owner"]:
        return Election(NOT_OWNER.format(role=row["role"], owner=row["owner"]))
    return Election() if row["has_lock"] else Election(ANOTHER_PROCESS, is_elsewhere=True)
