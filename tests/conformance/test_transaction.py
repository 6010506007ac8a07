"""A handler's transaction begins with its first statement and ends when the handler returns."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from onceward.errors import OncewardError, TransactionMisuse
from onceward.model.events import Outcome
from onceward.model.jobs import JobStatus
from onceward.ports import Store
from onceward.runtime.sql_text import parse
from onceward.work.running.transaction import Transaction
from support.database import RawDatabase
from tests.factories import arrival, leased_job, record, working

INSERT = "INSERT INTO notes (id, note) VALUES (:id, :note)"
QUOTED = "is in quotes, which makes it a text and no parameter;"


@pytest.fixture
def notes(store: Store, raw_db: RawDatabase) -> RawDatabase:
    """Return the database, with a table of the user's in it."""
    raw_db.rows("CREATE TABLE notes (id integer PRIMARY KEY, note text)")
    return raw_db


@pytest.fixture
async def tx(store: Store, notes: RawDatabase) -> AsyncIterator[Transaction]:
    """Yield an open transaction, and roll it back afterwards."""
    async with working(store) as work:
        yield work.tx


async def test_a_transaction_begins_with_its_first_statement(
    store: Store, notes: RawDatabase
) -> None:
    async with working(store) as work:
        receipts = await asyncio.wait_for(record(store, arrival()), 1.0)
        assert receipts[0].outcome is Outcome.RECORDED
        notes.rows("INSERT INTO notes VALUES (1, 'written by another')")
        assert await work.tx.fetch_value("SELECT count(*) FROM notes") == 1


async def test_writes_are_invisible_before_the_commit(store: Store, notes: RawDatabase) -> None:
    async with working(store) as work:
        await work.tx.execute(INSERT, {"id": 1, "note": "x"})
        assert notes.count("notes") == 0
        assert await work.tx.fetch_value("SELECT count(*) FROM notes") == 1
        await work.unit.commit()
    assert notes.count("notes") == 1


async def test_execute_returns_the_number_of_affected_rows(tx: Transaction) -> None:
    for number in range(3):
        assert await tx.execute(INSERT, {"id": number, "note": "x"}) == 1
    assert await tx.execute("UPDATE notes SET note = 'y' WHERE id > :id", {"id": 0}) == 2
    assert await tx.execute("DELETE FROM notes WHERE id = 99") == 0
    assert (
        await tx.execute("WITH n AS (SELECT 7 AS id) INSERT INTO notes (id) SELECT id FROM n") == 1
    )
    assert await tx.execute("SELECT id FROM notes") == 4
    assert await tx.execute("CREATE TABLE more (id integer)") == 0


async def test_rows_are_dicts_by_column_name(tx: Transaction) -> None:
    await tx.execute("INSERT INTO notes (id, note) VALUES (1, 'one'), (2, NULL)")
    assert await tx.fetch("SELECT id, note AS text FROM notes ORDER BY id") == [
        {"id": 1, "text": "one"},
        {"id": 2, "text": None},
    ]
    assert await tx.fetch_one("SELECT id FROM notes ORDER BY id DESC") == {"id": 2}
    assert await tx.fetch_one("SELECT id FROM notes WHERE id = 3") is None
    assert await tx.fetch_value("SELECT max(id) FROM notes") == 2
    assert await tx.fetch_value("SELECT id FROM notes WHERE id = 3") is None
    assert await tx.fetch("DELETE FROM notes WHERE id = 1 RETURNING note") == [{"note": "one"}]
    assert await tx.fetch("DELETE FROM notes") == []


TEMPLATES = [
    ("SELECT :a", "A"),
    ("SELECT CAST(:a AS text) || CAST(:a AS text) || :b", "AAB"),
    ("SELECT ':c'", ":c"),
    ("SELECT 'it''s :c'", "it's :c"),
    ('SELECT x.":c" FROM (SELECT 1 AS ":c") AS x', 1),
    ("SELECT 1 -- :absent %s", 1),
    ("/* :absent; %(x)s */ SELECT 1", 1),
    ("SELECT 7 % 4", 3),
    ("SELECT 1 WHERE 'abc' LIKE 'a%'", 1),
    ("SELECT CAST(:a AS text) || '%(a)s %s %%'", "A%(a)s %s %%"),
    ("SELECT 1;", 1),
    ("  ;; SELECT 1 ; -- the end", 1),
    ("SELECT ';' || :a", ";A"),
]
"""Statements, and the value that each returns."""


async def test_only_named_parameters_are_replaced(store: Store, subtests: pytest.Subtests) -> None:
    values = {"a": "A", "b": "B", "unused": None}
    for sql, expected in TEMPLATES:
        with subtests.test(sql):
            async with working(store) as work:
                assert await work.tx.fetch_value(sql, values) == expected


async def test_values_are_stored_unchanged(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    binary = "blob" if raw_db.is_sqlite else "bytea"
    kinds: dict[type, str] = {bytes: binary, int: "bigint", float: "double precision"}
    for value in (None, 0, -(2**40), 1.5, "", "é\n%:'\"", b"\0\xff", 10**15):
        with subtests.test(repr(value)):
            async with working(store) as work:
                await work.tx.execute(
                    f"CREATE TABLE stored (value {kinds.get(type(value), 'text')})"
                )
                await work.tx.execute("INSERT INTO stored VALUES (:value)", {"value": value})
                assert await work.tx.fetch_value("SELECT value FROM stored") == value


REFUSED = [
    ("COMMIT", "COMMIT"),
    ("commit work", "COMMIT"),
    ("-- a comment\n /* and */ Rollback;", "ROLLBACK"),
    ("BEGIN", "BEGIN"),
    ("BEGIN IMMEDIATE", "BEGIN"),
    ("START TRANSACTION", "START"),
    ("END", "END"),
    ("ABORT", "ABORT"),
    ("SAVEPOINT s", "SAVEPOINT"),
    ("RELEASE s", "RELEASE"),
    ("ROLLBACK TO s", "ROLLBACK"),
    ("PREPARE TRANSACTION 'x'", "PREPARE"),
    ("PRAGMA synchronous = OFF", "PRAGMA"),
    ("ATTACH 'other.db' AS other", "ATTACH"),
]
"""Statements, and the word in their errors."""


async def test_a_refused_statement_is_named_in_the_error(
    store: Store, notes: RawDatabase, subtests: pytest.Subtests
) -> None:
    for number, (sql, word) in enumerate(REFUSED):
        with subtests.test(sql):
            async with working(store) as work:
                await work.tx.execute(INSERT, {"id": number, "note": "x"})
                with pytest.raises(TransactionMisuse, match=word):
                    await work.tx.execute(sql)
            assert (number,) not in notes.rows("SELECT id FROM notes")


async def test_a_text_with_several_statements_or_none_is_refused(
    store: Store, subtests: pytest.Subtests
) -> None:
    several = ("SELECT 1; COMMIT", "SELECT 1; SELECT 2", "DELETE FROM notes;;COMMIT;")
    for sql in (*several, "", " -- x", ";"):
        with subtests.test(sql):
            async with working(store) as work:
                with pytest.raises(TransactionMisuse, match="one statement at a time"):
                    await work.tx.execute(sql)


async def test_a_missing_parameter_is_named_in_the_error(tx: Transaction) -> None:
    with pytest.raises(TransactionMisuse, match=":id, :note"):
        await tx.execute(INSERT, {"other": 1})


UNUSABLE: list[tuple[Any, Any, str]] = [
    (INSERT, [1, "x"], 'a dict by name, not a list: pass {"id": …, "note": …}'),
    (INSERT, (1, "x"), 'a dict by name, not a tuple: pass {"id": …, "note": …}'),
    (INSERT, {1, 2}, 'a dict by name, not a set: pass {"id": …, "note": …}'),
    (INSERT, "secret", 'a dict by name, not a str: pass {"id": …, "note": …}'),
    (INSERT, 7, 'a dict by name, not an int: pass {"id": …, "note": …}'),
    (INSERT, [], 'a dict by name, not a list: pass {"id": …, "note": …}'),
    ("SELECT ?", ("x",), 'not a tuple: write :name instead of ?, and pass {"name": …}'),
    ("SELECT %s", ["x"], 'not a list: write :name instead of %s, and pass {"name": …}'),
    ("SELECT $1", ["x"], 'not a list: write :name instead of $1, and pass {"name": …}'),
    ("SELECT '?'", ["x"], 'write :name in the statement, and pass {"name": …}'),
    ("SELECT ?", {"a": 1}, 'named: write :name instead of ?, and pass {"name": …}'),
    ("SELECT %(a)s", {"a": 1}, "helper: write :a, not %(a)s"),
    ("SELECT :b, %(a)s", {"a": 1, "b": 2}, "helper: write :a, not %(a)s"),
    ("SELECT ':a'", {"a": "secret"}, f":a {QUOTED} write :a without quotes"),
    ("SELECT ':a', :b", {"a": 1, "b": 2}, f":a {QUOTED} write :a without quotes"),
    (
        "SELECT '%:a%'",
        {"a": "secret"},
        f":a {QUOTED} write :a without quotes, joined to other texts with ||",
    ),
    ("SELECT :a", {"a": {"secret": 1}}, "helper: :a is a dict; pass json.dumps(…)"),
    (
        "SELECT :a, :b",
        {"a": 1, "b": object()},
        "helper: :b is an object; pass a str, a number, bytes or None",
    ),
    (["SELECT 1"], None, "the statement is a list; pass the SQL as a str"),
]


async def test_unusable_parameters_are_refused_with_the_line_and_the_fix(
    store: Store, subtests: pytest.Subtests
) -> None:
    async def helper(tx: Transaction, sql: Any, parameters: Any) -> None:
        await tx.execute(sql, parameters)

    line = helper.__code__.co_firstlineno + 1
    start = f"tests/conformance/test_transaction.py:{line} in helper: "
    for sql, parameters, fault in UNUSABLE:
        with subtests.test(f"{sql} {parameters}"):
            async with working(store) as work:
                with pytest.raises(TransactionMisuse) as refused:
                    await helper(work.tx, sql, parameters)
            assert str(refused.value).startswith(start)
            assert str(refused.value).endswith(fault)
            assert "secret" not in str(refused.value)


async def test_a_text_that_looks_like_a_parameter_is_allowed_where_it_is_meant(
    store: Store, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, dict[str, str]]] = [
        ("SELECT ':a'", {}),
        ("SELECT ':a', :a", {"a": "x"}),
        ("SELECT '12:30:a'", {"a": "x"}),
        ("SELECT 1 -- :a, %(a)s", {"a": "x"}),
        ("SELECT :b", {"a": "x", "b": "y"}),
    ]
    for sql, parameters in cases:
        with subtests.test(sql):
            async with working(store) as work:
                assert len(await work.tx.fetch(sql, parameters)) == 1


async def test_a_wrong_statement_is_not_blamed_on_its_values(tx: Transaction) -> None:
    with pytest.raises(Exception, match="nowhere"):
        await tx.execute("SELECT * FROM nowhere WHERE id = :a", {"a": 1})


async def test_a_swallowed_database_error_prevents_the_commit(
    store: Store, notes: RawDatabase, subtests: pytest.Subtests
) -> None:
    again = "INSERT INTO notes VALUES (1, 'again')"
    for sql in (again, "SELECT * FROM nowhere", "nonsense", "COMMIT"):
        with subtests.test(sql):
            token, job = await leased_job(store, sql)
            async with working(store) as work:
                await work.tx.execute(INSERT, {"id": 1, "note": sql})
                with pytest.raises(Exception) as swallowed:  # noqa: PT011 - each driver has its own
                    await work.tx.execute(sql)
                with pytest.raises(TransactionMisuse, match="an earlier statement failed"):
                    await work.tx.execute(INSERT, {"id": 2, "note": "y"})
                with pytest.raises(type(swallowed.value)):
                    await work.unit.settle(token, job.id)
            assert notes.count("notes") == 0
            assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_a_swallowed_database_error_comes_before_a_forgotten_await(
    store: Store, notes: RawDatabase
) -> None:
    async with working(store) as work:
        with pytest.raises(Exception) as swallowed:  # noqa: PT011 - each driver has its own
            await work.tx.execute("SELECT * FROM nowhere")
        work.tx.execute(INSERT, {"id": 1, "note": "x"})  # type: ignore[unused-coroutine]
        with pytest.raises(type(swallowed.value)) as raised:
            await work.unit.commit()
    assert raised.value is swallowed.value
    assert notes.count("notes") == 0


async def test_a_cancelled_statement_prevents_the_commit_and_blocks_no_others(
    store: Store, notes: RawDatabase
) -> None:
    token, job = await leased_job(store)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT sum(i) FROM n"
    async with asyncio.timeout(1.5):
        async with working(store) as work:
            await work.tx.execute(INSERT, {"id": 1, "note": "x"})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work.tx.fetch(endless), 0.1)
            with pytest.raises(OncewardError, match="was cancelled"):
                await work.unit.settle(token, job.id)
        await record(store, arrival("next"))
    assert notes.count("notes") == 0
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_concurrent_statements_run_one_after_the_other(tx: Transaction) -> None:
    await asyncio.gather(*(tx.execute(INSERT, {"id": n, "note": "x"}) for n in range(20)))
    assert await tx.fetch_value("SELECT count(*) FROM notes") == 20


async def test_a_statement_after_the_end_is_refused(store: Store, notes: RawDatabase) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        await work.tx.execute(INSERT, {"id": 1, "note": "x"})
        await work.unit.settle(token, job.id)
        with pytest.raises(TransactionMisuse, match="over"):
            await work.tx.execute(INSERT, {"id": 2, "note": "y"})
    with pytest.raises(TransactionMisuse, match="over"):
        await work.tx.execute(INSERT, {"id": 3, "note": "z"})
    assert notes.count("notes") == 1


async def test_transactions_are_independent(store: Store, notes: RawDatabase) -> None:
    for number in range(5):
        async with working(store) as work:
            await work.tx.execute(INSERT, {"id": number, "note": "x"})
            if number % 2:
                await work.unit.commit()
    assert notes.rows("SELECT id FROM notes ORDER BY id") == [(1,), (3,)]


async def test_a_preparation_creates_the_users_tables(store: Store, raw_db: RawDatabase) -> None:
    (statement,) = parse("CREATE TABLE mine (id integer)")
    async with store.prepare() as session:
        await session.run(statement, {})
        await session.commit()
    assert raw_db.count("mine") == 0
