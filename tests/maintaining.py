"""Maintenance in tests: run it with some settings, and move what was stored into the past."""

from typing import Any

from onceward.archive.location import make_archive
from onceward.model.retention import Purgeable
from onceward.operate.maintenance import Maintenance, Step
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from support.database import RawDatabase

TIMES = {
    "events": ("received_at", "processed_at"),
    "payloads": ("received_at",),
    "deliveries": ("received_at",),
    "jobs": ("received_at", "created_at", "finished_at", "available_at"),
    "attempts": ("started_at", "ended_at"),
    "effects": ("created_at", "updated_at", "used_at"),
    "rejections": ("received_at", "last_at"),
}
"""The times of each table that is purged."""

CHANGES = ("archive", "drop", "purge")
"""The actions that change what was received."""
KEEP_PAYLOADS = {"payload_days": 0}


def make_maintenance(store: Store, **settings: Any) -> Maintenance:
    """Return the maintenance of a store. Payloads are kept unless a setting says otherwise."""
    resolved = Settings(**KEEP_PAYLOADS | settings)
    failpoints = Failpoints()
    return Maintenance(
        store,
        resolved,
        SystemClock(),
        failpoints,
        lambda: make_archive(resolved.archive, failpoints) if resolved.archive else None,
    )


async def maintain(store: Store, failure: str = "", /, **settings: Any) -> dict[str, Step]:
    """Do the maintenance; return the last report of each step, by its subject.

    A part of it may have to fail, with some text in the reason.
    """
    steps: dict[str, Step] = {}
    reason = await make_maintenance(store, **settings).run(
        lambda step: steps.update({step.subject: step} if step.action in CHANGES else {})
    )
    assert bool(reason) == bool(failure), reason
    assert failure in reason, reason
    return steps


async def planned(store: Store, **settings: Any) -> dict[str, Step]:
    """Return what the maintenance would do, by subject."""
    plan = make_maintenance(store, **settings).plan()
    return {step.subject: step async for step in plan if step.action in CHANGES}


async def kept(store: Store, **settings: Any) -> dict[str, Step]:
    """Return what the maintenance would keep for jobs, by subject."""
    plan = make_maintenance(store, **settings).plan()
    return {step.subject: step async for step in plan if step.action == "keep"}


async def purge_all(store: Store, table: Purgeable, **settings: Any) -> int:
    """Do the maintenance, and return the rows that were purged of a table."""
    step = (await maintain(store, **settings)).get(table)
    return step.rows or 0 if step else 0


def age(raw_db: RawDatabase, days: float, *tables: str) -> None:
    """Move everything that is stored into the past, in some tables or in all of them."""
    microseconds = round(days * 86_400_000_000)
    shift = str(microseconds) if raw_db.is_sqlite else f"interval '{microseconds} microseconds'"
    for table in tables or TIMES:
        columns = ", ".join(f"{column} = {column} - {shift}" for column in TIMES[table])
        raw_db.rows(f"UPDATE onceward.{table} SET {columns}")  # noqa: S608 - no outside data


def age_audit(raw_db: RawDatabase, days: float) -> None:
    """Move all audit entries into the past, past the trigger that keeps them."""
    columns = "actor, authenticated_as, action, reason, subject"
    if raw_db.is_sqlite:
        with raw_db.connection() as connection:
            (trigger,) = connection.execute(
                "SELECT sql FROM sqlite_master WHERE name = 'onceward_audit_keeps_values'"
            ).fetchone()
            connection.execute("DROP TRIGGER onceward_audit_keeps_values")
            shift = round(days * 86_400_000_000)
            connection.execute("UPDATE onceward_audit SET at = at - ?", (shift,))
            connection.execute(trigger)
        return
    with raw_db.connection() as connection:
        rows = connection.execute(f"SELECT at, {columns} FROM onceward.audit").fetchall()  # noqa: S608
        connection.execute("SET LOCAL session_replication_role = replica")  # no triggers
        connection.execute("DROP TABLE IF EXISTS onceward.audit_history")
        connection.execute("DELETE FROM onceward.audit")
        for row in rows:
            connection.execute(
                f"INSERT INTO onceward.audit (at, {columns}) "  # noqa: S608
                f"VALUES (%s - interval '{days} days', %s, %s, %s, %s, %s)",
                row,
            )
