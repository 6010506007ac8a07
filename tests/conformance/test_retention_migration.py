"""Migration 0009 divides the audit trail: its entries, its ids and its grants stay."""

from collections.abc import Iterator

import psycopg
import pytest

from onceward.store import migrate
from onceward.store.migrate import migrations
from support.database import RawDatabase
from tests.conformance.test_payload_retention import act
from tests.factories import EVERYTHING, make_store, opened

ROLES = ("audit_reader", '"Audit-Writer"')
ENTRY = (
    "INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject) "
    "VALUES ({at}, 'Ann', 'cli', 'cancel', 'why', 'job:7')"
)
GRANTS = """
    SELECT acl.grantee::regrole::text, acl.privilege_type
    FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS acl
    WHERE c.oid = '{}'::regclass AND acl.grantee <> c.relowner ORDER BY 1, 2
"""
EVERY_GRANT = """
    SELECT acls.name, acl.grantee::regrole::text, acl.privilege_type, acl.is_grantable
    FROM pg_class c
    CROSS JOIN LATERAL (
        SELECT NULL::text, c.relacl
        UNION ALL SELECT attname::text, attacl FROM pg_attribute WHERE attrelid = c.oid
    ) AS acls (name, acl)
    CROSS JOIN LATERAL aclexplode(acls.acl) AS acl
    WHERE c.oid = 'onceward.audit'::regclass AND acl.grantee <> c.relowner
    ORDER BY acls.name NULLS FIRST, 2, 3
"""


async def migrate_before(number: int, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply the migrations below a number, as an earlier version did."""

    def earlier(dialect: str) -> list[migrate.Migration]:
        return [each for each in migrations(dialect) if each.number < number]

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "migrations", earlier)
        store = make_store(url)
        await store.migrate()
        await store.close()


async def test_the_audit_trail_keeps_its_entries_and_goes_on(
    bare_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_db = RawDatabase(bare_database_url)
    await migrate_before(9, bare_database_url, monkeypatch)
    times = ["1", "2", "3"] if raw_db.is_sqlite else ["'2001-01-01Z'", "'2026-01-01Z'", "now()"]
    for time in times:
        raw_db.rows(ENTRY.format(at=time))
    columns = "id, at, actor, authenticated_as, action, reason, subject"
    entries = f"SELECT {columns} FROM onceward.audit ORDER BY id"  # noqa: S608 - no outside data
    before = raw_db.rows(entries)
    async with opened(bare_database_url) as store:
        assert raw_db.rows(entries) == before
        await act(store, "a")
        ids = [entry.id for entry in await store.audit(EVERYTHING)]
    assert ids == ["4", "3", "2", "1"]
    for statement in ("DELETE FROM onceward.audit", "UPDATE onceward.audit SET actor = 'x'"):
        with pytest.raises(Exception, match="append only"):
            raw_db.rows(statement)
    if not raw_db.is_sqlite:
        assert raw_db.count("onceward.audit_history") == 4
        with pytest.raises(psycopg.Error, match="append only"):
            raw_db.rows("DELETE FROM onceward.audit_history")


async def test_an_empty_audit_trail_begins_with_the_first_id(
    bare_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate_before(9, bare_database_url, monkeypatch)
    async with opened(bare_database_url) as store:
        await act(store, "a")
        assert [entry.id for entry in await store.audit(EVERYTHING)] == ["1"]


@pytest.fixture
def roles(bare_postgres_url: str) -> Iterator[tuple[str, ...]]:
    raw_db = RawDatabase(bare_postgres_url)
    for role in ROLES:
        raw_db.rows(f"CREATE ROLE {role} LOGIN")
    yield ROLES
    for role in ROLES:
        raw_db.rows(f"DROP OWNED BY {role}")
        raw_db.rows(f"DROP ROLE {role}")


async def test_the_grants_of_the_audit_trail_are_carried_over(
    bare_postgres_url: str, roles: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that runs during the migration has them, and no other ones."""
    raw_db = RawDatabase(bare_postgres_url)
    await migrate_before(9, bare_postgres_url, monkeypatch)
    reader, writer = roles
    raw_db.rows(f"GRANT SELECT ON onceward.audit TO {reader}")
    raw_db.rows(f"GRANT SELECT, INSERT ON onceward.audit TO {writer}")
    raw_db.rows(f"GRANT USAGE ON SCHEMA onceward TO {writer}")
    expected = [(writer, "INSERT"), (writer, "SELECT"), (reader, "SELECT")]
    assert raw_db.rows(GRANTS.format("onceward.audit")) == expected
    store = make_store(bare_postgres_url)
    assert await store.migrate()
    await store.close()
    assert raw_db.rows(GRANTS.format("onceward.audit")) == expected
    with raw_db.connection() as connection:
        connection.execute(f"SET ROLE {writer}")
        connection.execute(ENTRY.format(at="now()"))
        assert connection.execute("SELECT id FROM onceward.audit").fetchall() == [(1,)]


async def test_grant_options_and_grants_on_columns_are_carried_over(
    bare_postgres_url: str, roles: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_db = RawDatabase(bare_postgres_url)
    await migrate_before(9, bare_postgres_url, monkeypatch)
    reader, writer = roles
    raw_db.rows(f"GRANT INSERT ON onceward.audit TO {writer} WITH GRANT OPTION")
    raw_db.rows(f"GRANT SELECT (id, at) ON onceward.audit TO {reader}")
    raw_db.rows(f"GRANT SELECT (subject) ON onceward.audit TO {writer} WITH GRANT OPTION")
    raw_db.rows(f"ALTER DEFAULT PRIVILEGES IN SCHEMA onceward GRANT DELETE ON TABLES TO {reader}")
    store = make_store(bare_postgres_url)
    await store.migrate()
    await store.close()
    assert raw_db.rows(EVERY_GRANT) == [
        (None, writer, "INSERT", True),
        ("at", reader, "SELECT", False),
        ("id", reader, "SELECT", False),
        ("subject", writer, "SELECT", True),
    ]


async def test_a_grant_to_everyone_is_carried_over(
    bare_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_db = RawDatabase(bare_postgres_url)
    await migrate_before(9, bare_postgres_url, monkeypatch)
    raw_db.rows("GRANT SELECT ON onceward.audit TO PUBLIC")
    store = make_store(bare_postgres_url)
    await store.migrate()
    await store.close()
    assert raw_db.rows(GRANTS.format("onceward.audit")) == [("-", "SELECT")]
