"""What maintenance does to partitions waits briefly for its locks: receivers wait behind it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from onceward.errors import NewerSchema, StoreBlocked
from onceward.model.weeks import Week
from onceward.ports import Store
from onceward.store.locks import Lock
from onceward.store.postgres import maintenance, partitions
from onceward.store.postgres.partitions import PAYLOADS
from onceward.store.postgres.store import PostgresStore
from support.database import RawDatabase
from tests.conformance.test_payload_retention import act, subject
from tests.conformance.test_retention import finish
from tests.factories import ACT, opened
from tests.maintaining import age, age_audit

HANG_SECONDS = 20.0
"""Without a timeout, a step waits for as long as the test holds its lock."""
LEDGER = "SELECT pg_advisory_xact_lock(7136231, 7)"


@pytest.fixture
async def store(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(maintenance, "LOCK_TRIES", 1)
    monkeypatch.setattr(partitions, "_LEDGER_LOCK_SECONDS", 1)
    async with opened(postgres_url) as store:
        yield store


@pytest.fixture
def raw_db(postgres_url: str) -> RawDatabase:
    return RawDatabase(postgres_url)


async def do(store: Store, step: str) -> None:
    match step:
        case "drop_payloads":
            week = Week.parse(subject(20).removeprefix("payloads_"))
            assert week is not None
            await store.drop_payloads(week, ACT)
        case "drop_audit":
            await store.drop_audit("audit_history", datetime.now(UTC), ACT)
        case _:
            await store.make_partitions()


LOCKS = {
    "drop_payloads": [
        "LOCK TABLE onceward.payloads IN ACCESS SHARE MODE",
        "LOCK TABLE onceward.{partition} IN ACCESS SHARE MODE",
        LEDGER,
    ],
    "drop_audit": ["LOCK TABLE onceward.audit IN ACCESS SHARE MODE", LEDGER],
    "attach": [
        "LOCK TABLE onceward.payloads IN SHARE UPDATE EXCLUSIVE MODE",
        "LOCK TABLE onceward.payloads_default IN ACCESS SHARE MODE",
    ],
    "move": ["LOCK TABLE onceward.audit_default IN ROW EXCLUSIVE MODE"],
}
"""The locks that each step must have."""


@pytest.mark.parametrize("step", LOCKS)
async def test_a_step_gives_up_while_another_transaction_holds_its_lock(
    store: Store, raw_db: RawDatabase, step: str, subtests: pytest.Subtests
) -> None:
    await finish(store, "old")
    age(raw_db, 20)
    await store.make_partitions()
    if step == "attach":
        raw_db.rows(f"DROP TABLE onceward.{subject(-21)}")
    elif step == "move":
        await act(store, "a")
        age_audit(raw_db, 100)
    before = [raw_db.count(f"onceward.{table}") for table in ("payloads", "audit")]
    for lock in LOCKS[step]:
        with subtests.test(lock):
            with raw_db.connection() as other:
                other.execute(lock.format(partition=subject(20)))
                with pytest.raises(StoreBlocked, match="Nothing was changed"):
                    async with asyncio.timeout(HANG_SECONDS):
                        await do(store, step)
            after = [raw_db.count(f"onceward.{table}") for table in ("payloads", "audit")]
            assert after == before
    await do(store, step)


async def test_the_timeout_of_a_lock_ends_with_its_transaction(store: Store) -> None:
    """A session is used again for statements that may wait."""
    assert isinstance(store, PostgresStore)
    async with store._maintenance_pool.use_for_ledger(limited=False) as connection:

        async def timeout() -> str:
            row = await (await connection.execute("SHOW lock_timeout")).fetchone()
            assert row is not None
            return str(row["lock_timeout"])

        before = await timeout()
        async with partitions.locked(connection, Lock.LEDGER, PAYLOADS):
            assert await timeout() == "200ms"
        assert await timeout() == before


@pytest.mark.parametrize("step", LOCKS)
async def test_a_step_on_a_newer_schema_changes_nothing(
    store: Store, raw_db: RawDatabase, step: str
) -> None:
    await finish(store, "old")
    age(raw_db, 20)
    await store.make_partitions()
    if step == "attach":
        raw_db.rows(f"DROP TABLE onceward.{subject(-21)}")
    elif step == "move":
        await act(store, "a")
        age_audit(raw_db, 100)
    raw_db.rows("INSERT INTO onceward.migrations (number, name) VALUES (9999, 'newer')")
    tables = "SELECT relname FROM pg_class WHERE relkind = 'r' ORDER BY 1"
    before = raw_db.rows(tables)
    with pytest.raises(NewerSchema):
        await do(store, step)
    assert raw_db.rows(tables) == before


async def test_only_those_who_hold_the_table_are_named(store: Store, raw_db: RawDatabase) -> None:
    await finish(store, "old")
    age(raw_db, 20)
    await store.make_partitions()
    raw_db.rows("CREATE TABLE notes (id int)")
    with (
        raw_db.connection() as unrelated,
        raw_db.connection() as other,
    ):
        unrelated.execute("LOCK TABLE onceward.jobs, notes IN ACCESS SHARE MODE")
        other.execute(LOCKS["drop_payloads"][0].encode())
        with pytest.raises(StoreBlocked) as raised:
            await do(store, "drop_payloads")
        assert f"process {other.info.backend_pid} " in str(raised.value)
        assert f"process {unrelated.info.backend_pid} " not in str(raised.value)
