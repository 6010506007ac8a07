"""PostgreSQL alone: the privileges of `onceward archive`, as docs/install.md states them."""

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from onceward.archive.parquet_archive import ParquetArchive
from onceward.errors import ConfigurationError, StoreError
from onceward.model.archive import ArchiveQuery, EventKey
from onceward.operate.archive_files import find_event, list_files, read_body, verify_files
from onceward.operate.restoring import restore_week
from onceward.ports import Store
from support.database import RawDatabase
from tests.archiving import WEEK, archived, drop_payloads, in_folder, record_at
from tests.factories import ACT, arrival, make_store, opened

ROLE = "shop_archivist"
KEY = EventKey("stripe", "evt_1")
INSTALL_PAGE = Path(__file__).parents[2] / "docs" / "install.md"
ROW = re.compile(r"^\| `onceward archive` \|.*\| (.+) \|$", re.MULTILINE)
Use = Callable[[Store, ParquetArchive], Awaitable[None]]
GRANT = re.compile(r"([A-Z]+(?:, [A-Z]+)*) on ((?:`\w+`(?:, | and )?)+)")


def clauses() -> list[list[str]]:
    """Return the grants in each clause of the row about `onceward archive`."""
    (row,) = ROW.findall(INSTALL_PAGE.read_text())
    return [
        [
            f"GRANT {privilege} ON onceward.{name} TO {ROLE}"
            for privileges, names in GRANT.findall(clause)
            for privilege in privileges.split(", ")
            for name in re.findall(r"\w+", names.replace(" and ", ", "))
        ]
        for clause in row.split("; ")
    ]


def revocation(grant: str) -> str:
    return grant.replace("GRANT", "REVOKE").replace(" TO ", " FROM ")


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def role_url(bare_postgres_url: str) -> Iterator[str]:
    """Return the URL of a database for a role that may only connect."""
    run(bare_postgres_url, f"CREATE ROLE {ROLE} LOGIN")
    yield bare_postgres_url.replace("postgres@", f"{ROLE}@")
    run(bare_postgres_url, f"DROP OWNED BY {ROLE} CASCADE", f"DROP ROLE {ROLE}")


async def as_role(url: str, archive: ParquetArchive, use: Use) -> None:
    """Open the ledger as commands do, without registering anything, and use it."""
    store = make_store(url)
    try:
        await store.open(serving=False)
        await use(store, archive)
    finally:
        await store.close()


async def look(store: Store, archive: ParquetArchive) -> None:
    assert len([file async for file in list_files(store, ArchiveQuery())]) == 1
    assert (await find_event(store, archive, KEY)).event.body == b"{}"


async def read(store: Store, archive: ParquetArchive) -> None:
    assert (await read_body(store, archive, KEY, ACT)).event.body == b"{}"


async def verify(store: Store, archive: ParquetArchive) -> None:
    assert [fault async for _, fault in verify_files(store, archive, ArchiveQuery())] == [None]


async def restore(store: Store, archive: ParquetArchive) -> None:
    assert (await restore_week(store, archive, WEEK, ACT)).events == 1


async def test_each_clause_grants_what_an_action_needs_and_no_more(
    bare_postgres_url: str, role_url: str, tmp_path: Path
) -> None:
    archive, raw_db = in_folder(tmp_path), RawDatabase(bare_postgres_url)
    async with opened(bare_postgres_url) as owner:
        await record_at(owner, raw_db, arrival("evt_1"))
        await archived(owner, archive)
    drop_payloads(raw_db, events=True)
    run(bare_postgres_url, f"GRANT USAGE ON SCHEMA onceward TO {ROLE}")
    for grants, use in zip(clauses(), (look, read, verify, restore), strict=True):
        for missing in grants:
            run(bare_postgres_url, *(grant for grant in grants if grant != missing))
            with pytest.raises((StoreError, ConfigurationError), match=r"denied|lacks"):
                await as_role(role_url, archive, use)
            run(bare_postgres_url, missing)
            if missing != grants[-1]:
                run(bare_postgres_url, *(revocation(grant) for grant in grants))
        await as_role(role_url, archive, use)
