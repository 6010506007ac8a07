"""Checks that an acknowledged event survives a crash, and that each event is recorded once."""

from __future__ import annotations

from typing import Final

from onceward.errors import ConfigurationError
from onceward.store.postgres.connections import Connection

_DURABLE: Final = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}
_SETTINGS: Final = "SELECT name, reset_val AS setting FROM pg_settings WHERE name = ANY(%s)"
_UNLOGGED: Final = """
    SELECT c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'onceward' AND c.relkind = 'r' AND c.relpersistence = 'u'
    ORDER BY c.relname
"""

_KEYS: Final = {
    "events_once": "UNIQUE (source, event_id)",
    "jobs_once": "UNIQUE (event, handler)",
    "effects_once": "UNIQUE (idempotency_key)",
    "watermarks_once": "PRIMARY KEY (handler, key)",
}
_FOUND_KEYS: Final = """
    SELECT c.conname AS name, pg_get_constraintdef(c.oid) AS definition
    FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace
    WHERE n.nspname = 'onceward' AND c.conname = ANY(%s)
"""


async def weak_settings(connection: Connection) -> list[str]:
    """Return the settings, and the tables, that may lose acknowledged events in a crash."""
    settings = await (await connection.execute(_SETTINGS, (list(_DURABLE),))).fetchall()
    tables = await (await connection.execute(_UNLOGGED)).fetchall()
    return [
        *(
            f"PostgreSQL runs with {row['name']} = {row['setting']}"
            for row in settings
            if row["setting"] not in _DURABLE[row["name"]]
        ),
        *(
            f"The table onceward.{row['name']} is UNLOGGED, so a crash empties it (repair: ALTER "
            f"TABLE onceward.{row['name']} SET LOGGED)"
            for row in tables
        ),
    ]


async def require_keys(connection: Connection) -> None:
    """Raise ConfigurationError if a unique key is missing, or has other columns."""
    rows = await (await connection.execute(_FOUND_KEYS, (list(_KEYS),))).fetchall()
    found = {row["name"]: row["definition"] for row in rows}
    faults = [
        f"The constraint {name} of the schema onceward must be {definition}, and "
        f"{f'is {found[name]}' if name in found else 'is missing'}."
        for name, definition in _KEYS.items()
        if found.get(name) != definition
    ]
    if faults:
        advice = "Without it, an event could be applied twice. Restore it, or a complete backup."
        raise ConfigurationError([*faults, advice])
