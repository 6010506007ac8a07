"""The privileges that a serving process needs, and the errors that name the missing ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from onceward.errors import ConfigurationError
from onceward.ports import EVERY_DUTY, Duty
from onceward.store.postgres.connections import Connection

NEEDED_BY_ALL: Final[Mapping[str, tuple[str, ...]]] = {
    "events": ("SELECT",),
    "handlers": ("SELECT", "INSERT", "UPDATE"),
    "jobs": ("SELECT",),
    "migrations": ("SELECT",),
    "provisioned_secrets": ("SELECT",),
    "routes": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "sources": ("SELECT", "INSERT", "UPDATE"),
    "tokens": ("SELECT",),
    "workers": ("SELECT", "DELETE"),
}
"""The privileges that every serving process uses: each registers. Only the owner deletes events."""
NEEDED_BY_DUTY: Final[Mapping[Duty, Mapping[str, tuple[str, ...]]]] = {
    Duty.RECEIVE: {
        "archives": ("SELECT",),
        "audit": ("SELECT", "INSERT"),
        "attempts": ("SELECT",),
        "body_hashes": ("SELECT", "INSERT"),
        "deliveries": ("SELECT", "INSERT", "UPDATE"),
        "duplicate_bodies": ("SELECT", "INSERT"),
        "effects": ("SELECT", "UPDATE"),
        "events": ("INSERT", "UPDATE"),
        "jobs": ("INSERT", "UPDATE"),
        "leases": ("SELECT", "UPDATE"),
        "payloads": ("SELECT", "INSERT"),
        "provisioned_secrets": ("INSERT",),
        "rejection_counts": ("SELECT", "INSERT", "UPDATE"),
        "rejections": ("SELECT", "INSERT", "UPDATE", "DELETE"),
        "tokens": ("INSERT",),
        "watermarks": ("SELECT", "DELETE"),
    },
    Duty.WORK: {
        "attempts": ("SELECT", "INSERT", "DELETE"),
        "body_hashes": ("SELECT",),
        "effects": ("SELECT", "INSERT", "UPDATE"),
        "jobs": ("UPDATE",),
        "leases": ("SELECT", "INSERT", "UPDATE", "DELETE"),
        "payloads": ("SELECT",),
        "rates": ("SELECT", "INSERT", "UPDATE"),
        "watermarks": ("SELECT", "INSERT", "UPDATE"),
        "workers": ("INSERT", "UPDATE"),
    },
}
"""The further privileges of each duty. docs/install.md lists the same."""

_ORDER: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")


def needed_on_tables(duties: Duty) -> dict[str, tuple[str, ...]]:
    """Return the privileges on each table that the statements of some duties use."""
    parts = [NEEDED_BY_ALL, *(NEEDED_BY_DUTY[duty] for duty in duties)]
    return {
        name: tuple(
            privilege
            for privilege in _ORDER
            if any(privilege in part.get(name, ()) for part in parts)
        )
        for name in sorted({name for part in parts for name in part})
    }


def _needed(duties: Duty) -> list[tuple[str, str, str]]:
    """Return the kind, the name and the privilege of each object that some duties use."""
    tables = [
        ("TABLE", f"onceward.{name}", privilege)
        for name, privileges in needed_on_tables(duties).items()
        for privilege in privileges
    ]
    # Identity columns use their sequences without a privilege.
    recording = [
        ("SEQUENCE", "onceward.ledger_ids", "USAGE"),
        ("FUNCTION", "onceward.first_event_with", "EXECUTE"),
    ]
    working = [("SEQUENCE", "onceward.worker_numbers", "USAGE")]
    return [
        ("SCHEMA", "onceward", "USAGE"),
        *tables,
        *(recording if Duty.RECEIVE in duties else ()),
        *(working if Duty.WORK in duties else ()),
    ]


_REFUSED_SCHEMA: Final = re.compile(r"permission denied for schema (?P<schema>\S+)")
_TABLE: Final = "TABLE "
_MIGRATIONS: Final = f"{_TABLE}onceward.migrations"
_LISTED_MIGRATIONS: Final = 4
_LISTED_TABLES: Final = 3
"""If more tables lack grants, the error names the first ones and has one grant for all."""

# Reads the catalogs, which every role may: to_regclass() raises an error without USAGE on the
# schema. A privilege on an object that does not exist is NULL.
_ACCESS: Final = """
    SELECT
        quote_ident(current_user) AS role,
        quote_ident(current_database()) AS database,
        quote_ident(pg_get_userbyid(COALESCE(m.relowner, n.nspowner))) AS owner,
        w.kind || ' ' || w.name AS object,
        w.privilege,
        CASE w.kind
            WHEN 'SCHEMA' THEN has_schema_privilege(n.oid, w.privilege)
            WHEN 'TABLE' THEN has_table_privilege(c.oid, w.privilege)
            WHEN 'SEQUENCE' THEN has_sequence_privilege(c.oid, w.privilege || ', UPDATE')
            WHEN 'FUNCTION' THEN has_function_privilege(p.oid, w.privilege)
        END AS is_granted
    FROM unnest(%s::text[], %s::text[], %s::text[])
        WITH ORDINALITY AS w (kind, name, privilege, position)
    LEFT JOIN pg_namespace n ON n.nspname = 'onceward'
    LEFT JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'migrations'
    LEFT JOIN pg_class c ON c.relnamespace = n.oid AND 'onceward.' || c.relname = w.name
        AND (c.relkind = 'S') = (w.kind = 'SEQUENCE')
    LEFT JOIN pg_proc p ON p.pronamespace = n.oid AND 'onceward.' || p.proname = w.name
    ORDER BY w.position
"""


@dataclass(frozen=True, slots=True)
class Access:
    """The access of the connected role to the schema. Names are quoted where SQL needs it."""

    role: str
    database: str
    owner: str | None
    """The role that can migrate; None if there is no schema."""
    lacking: Mapping[str, Sequence[str]]
    """The missing privileges on each object, such as ``TABLE onceward.jobs``."""
    absent: Sequence[str]
    """The objects that do not exist."""

    @property
    def has_migrations(self) -> bool:
        """Whether the table of migrations exists."""
        return _MIGRATIONS not in self.absent

    @property
    def can_read_migrations(self) -> bool:
        """Whether the role may read which migrations were applied."""
        return not {"SCHEMA onceward", _MIGRATIONS} & self.lacking.keys()


async def load_access(connection: Connection, duties: Duty = EVERY_DUTY) -> Access:
    """Return the access of the connected role to everything that it needs, in one query."""
    columns = [list(column) for column in zip(*_needed(duties), strict=True)]
    cursor = await connection.execute(_ACCESS, columns, prepare=False)
    rows = await cursor.fetchall()
    lacking: dict[str, list[str]] = {}
    for row in rows:
        if row["is_granted"] is False:
            lacking.setdefault(row["object"], []).append(row["privilege"])
    absent = dict.fromkeys(row["object"] for row in rows if row["is_granted"] is None)
    role, database, owner = (rows[0][name] for name in ("role", "database", "owner"))
    return Access(role, database, owner, lacking, tuple(absent))


def require_access(access: Access) -> None:
    """Raise ConfigurationError with the missing objects, or the missing privileges and grants."""
    if access.absent:
        parts = (name.partition(" ") for name in access.absent)
        names = ", ".join(_plain(kind, [rest]) for kind, _, rest in parts)
        msg = (
            f"The database lacks {names}, although onceward.migrations lists every migration. "
            "Restore the database from a complete backup."
        )
        raise ConfigurationError(msg)
    if access.lacking:
        raise lacking_error(access)


def lacking_error(access: Access) -> ConfigurationError:
    """Return the error of a role that may not use everything it needs."""
    tables = [name for name in access.lacking if name.startswith(_TABLE)]
    are_many = len(tables) > _LISTED_TABLES
    missing = [
        f"{privileges} on {_plain(kind, names)}"
        for kind, privileges, names in _grouped(access)
        if not (are_many and kind == "TABLE")
    ]
    if are_many:
        first = ", ".join(name.removeprefix(_TABLE) for name in tables[:_LISTED_TABLES])
        missing.append(f"privileges on {len(tables)} tables ({first}, …)")
    advice = "; ".join(_grants(access, every_table=are_many))
    return ConfigurationError(
        [
            f"The role {access.role} lacks {'; '.join(missing)}.",
            f"Run as {access.owner}: {advice}. docs/install.md lists all grants.",
        ]
    )


def _grants(access: Access, *, every_table: bool) -> Iterator[str]:
    """Yield the statements that grant the missing privileges."""
    if every_table:
        every = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA onceward"
        yield f"GRANT {every} TO {access.role}"
    for kind, privileges, names in _grouped(access):
        if not (every_table and kind == "TABLE"):
            yield f"GRANT {privileges} ON {kind} {', '.join(names)} TO {access.role}"


def _grouped(access: Access) -> list[tuple[str, str, list[str]]]:
    """Return each kind of object and the privileges that are missing, with the names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, privileges in access.lacking.items():
        kind, _, rest = name.partition(" ")
        groups.setdefault((kind, ", ".join(privileges)), []).append(rest)
    return [(kind, privileges, names) for (kind, privileges), names in groups.items()]


def _plain(kind: str, names: Sequence[str]) -> str:
    """Return the names of objects of one kind in a sentence."""
    return f"the {kind.lower()}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def explain_refused_create(error: psycopg.Error, role: str) -> None:
    """Add a note to the error of a CREATE statement in a schema where the role may not create."""
    if refused := _REFUSED_SCHEMA.search(error.diag.message_primary or ""):
        schema = refused["schema"]
        error.add_note(
            f"The role {role} may not create tables in {schema}, and PostgreSQL checks this even "
            "for IF NOT EXISTS. Create the table as the owner and remove this at_start, or: GRANT "
            f"CREATE ON SCHEMA {schema} TO {role}"
        )


def migrate_error(access: Access, labels: Sequence[str], reason: str) -> ConfigurationError:
    """Return the error of a role that may not apply the migrations that the database lacks."""
    listed = ", ".join(labels)
    if len(labels) > _LISTED_MIGRATIONS:
        listed = f"{labels[0]} to {labels[-1]}"
    refusal = (
        f"The database lacks migrations ({listed}), and the role {access.role} may not "
        f"apply them: {reason}."
    )
    if access.owner is None:
        advice = (
            f"Run as the owner of the database: GRANT CREATE ON DATABASE {access.database} TO "
            f"{access.role}. Or run `onceward migrate` as another role, then grant {access.role} "
            "what docs/install.md lists."
        )
    else:
        advice = (
            f"Run `onceward migrate` as {access.owner}, which owns the schema, then repeat the "
            "grants of docs/install.md."
        )
    return ConfigurationError([refusal, advice])
