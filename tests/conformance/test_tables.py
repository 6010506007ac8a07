"""docs/tables.md: it documents the schema of both stores, and its queries run."""

import re
from pathlib import Path
from typing import Any

import pytest

from onceward.model.jobs import Job
from onceward.ports import Store
from support.database import RawDatabase, Row
from tests.factories import arrival, failed_job, lease, leased_job, record, working

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
SECTION = re.compile(r"^### ([^\n]+)\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
QUERY = re.compile(r"^```sql\n(?:-- (\w+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)
COLUMN = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
ONE_STORE = {"counters"}
POSTGRES_ONLY = re.compile(r"^\| `(\w+)` \| PostgreSQL only:", re.MULTILINE)
PARTITION = re.compile(r"(payloads|audit)_(\d{8}|default|history)")

TABLES_OF_SQLITE = """
    SELECT substr(t.name, length('onceward_') + 1), c.name
    FROM sqlite_master t JOIN pragma_table_info(t.name) c
    WHERE t.type = 'table' AND t.name LIKE 'onceward@_%' ESCAPE '@'
"""
TABLES_OF_POSTGRES = """
    SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'onceward'
"""


def documented(*, is_sqlite: bool) -> dict[str, set[str]]:
    tables = {
        name: set(COLUMN.findall(text)) - set(POSTGRES_ONLY.findall(text) if is_sqlite else ())
        for name, text in SECTION.findall(PAGE)
    }
    return {name: columns for name, columns in tables.items() if columns}


def in_schema(raw_db: RawDatabase) -> dict[str, set[str]]:
    with raw_db.connection() as connection:
        statement = TABLES_OF_SQLITE if raw_db.is_sqlite else TABLES_OF_POSTGRES
        rows = connection.execute(statement).fetchall()
    tables: dict[str, set[str]] = {}
    for table, column in rows:
        if not PARTITION.fullmatch(table):
            tables.setdefault(table, set()).add(column)
    return tables


def query(heading: str, raw_db: RawDatabase) -> list[Row]:
    """Run the query below a heading, the one for this store if there are two."""
    dialect = "SQLite" if raw_db.is_sqlite else "PostgreSQL"
    texts = [
        text
        for label, text in QUERY.findall(dict(SECTION.findall(PAGE))[heading])
        if label in ("", dialect)
    ]
    (text,) = texts
    return raw_db.rows(text)


async def test_every_table_and_column_is_documented(store: Store, raw_db: RawDatabase) -> None:
    schema, page = in_schema(raw_db), documented(is_sqlite=raw_db.is_sqlite)
    missing = {name: columns - page.get(name, set()) for name, columns in schema.items()}
    assert {name: columns for name, columns in missing.items() if columns} == {}
    gone = {name: columns - schema.get(name, set()) for name, columns in page.items()}
    assert {name for name, columns in gone.items() if columns} <= ONE_STORE


@pytest.fixture
async def ledger(store: Store) -> Job:
    """Record one event for each query; return the job that failed."""
    await record(store, arrival("evt_1", reference="sub_123"))
    credited = await lease(store)
    async with working(store) as work:
        await work.unit.mark_effect(credited.jobs[0].id, "credit:in_1", None)
        assert await work.unit.settle(credited.token, credited.jobs[0].id)
    failed = await failed_job(store, "evt_2")
    token, job = await leased_job(store, "evt_3")
    assert await store.settle_done(token, job.id)
    await record(store, arrival("evt_3"), arrival("evt_3", body=b"[]"))
    await record(store, arrival("evt_4", type="unknown.type"))
    await record(store, arrival("evt_5"))
    await record(store, arrival("evt_6"))
    await lease(store, limit=1)
    return failed


async def test_the_queries_find_what_they_promise(
    store: Store, raw_db: RawDatabase, ledger: Job
) -> None:
    found: dict[str, Any] = {
        heading: query(heading, raw_db)
        for heading, text in SECTION.findall(PAGE)
        if QUERY.search(text)
    }
    ((job, *failure),) = [row[:8] for row in found["Failed jobs, with the reason"]]
    assert job == ledger.id
    assert failure == [
        "stripe", "evt_2", "invoice.paid", "credit", 1, "permanent", "no such account",
    ]  # fmt: skip
    ((number, worker, *_, error),) = found["Every failed attempt of a job"]
    assert (number, worker, error) == (1, "worker-1", "no such account")
    assert [row[:2] for row in found["Oldest waiting job"]] == [
        ("credit", "evt_5"),
        ("credit", "evt_6"),
    ]
    ((worker, _, running),) = found["Jobs that run now"]
    assert (worker, running) == ("worker-1", ledger.id + 2)
    without_effect = found["Events that were handled without an effect"]
    assert [row[:3] for row in without_effect] == [("stripe", "evt_3", "invoice.paid")]
    assert found["Events that no handler wanted"] == [("stripe", "unknown.type", 1)]
    assert found["Redeliveries and conflicts"] == [("stripe", "evt_3", 3, 1)]
    ((_, *about),) = found["Everything about one object"]
    assert about == ["stripe", "invoice.paid", "evt_1", "credit", "done", None]
    assert found["The body of an event"] == [("{}",)]
    assert found["Rejected requests, by source and cause"] == []
    assert found["Workers that are alive"] == []
    assert len(found) == 11


async def test_the_query_for_workers_leaves_out_the_dead(store: Store, raw_db: RawDatabase) -> None:
    for name in ("alive", "dead", "from the future"):
        await store.renew_worker(name, ["credit"], is_start=True)
    second = "1000000" if raw_db.is_sqlite else "interval '1 second'"
    for name, seconds in (("alive", -30), ("dead", -40), ("from the future", 40)):
        moved = f"seen_at = seen_at + {seconds} * {second}"
        raw_db.rows(f"UPDATE onceward.workers SET {moved} WHERE name = '{name}'")  # noqa: S608
    shown = [row[0] for row in query("Workers that are alive", raw_db)]
    assert shown == [worker.name for worker in await store.live_workers()] == ["alive"]


async def test_a_payload_that_was_erased_fails_its_job_with_a_reason(
    store: Store, raw_db: RawDatabase, ledger: Job
) -> None:
    raw_db.rows(f"DELETE FROM onceward.payloads WHERE event = {ledger.event}")  # noqa: S608 - no outside input
    with pytest.raises(Exception, match="no longer stored"):
        await store.load_body(ledger)
    (again,) = await record(store, arrival("evt_2"))
    assert again.event == ledger.event
