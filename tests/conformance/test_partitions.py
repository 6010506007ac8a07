"""Partitions on PostgreSQL are created ahead, filled from the default one, and dropped behind."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from onceward.model.weeks import Week
from onceward.ports import Store
from onceward.store.postgres import maintenance as postgres_maintenance
from onceward.store.postgres import partitions as postgres_partitions
from onceward.store.postgres.partitions import AUDIT, PAYLOADS
from support.database import RawDatabase
from tests.conformance.test_payload_retention import act, payloads, subject
from tests.conformance.test_retention import finish
from tests.factories import ACT, arrival, arrivals, failed_job, opened, record
from tests.maintaining import age, age_audit, maintain, make_maintenance

PARTITIONS = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '{}'::regclass"


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    async with opened(postgres_url) as store:
        yield store


@pytest.fixture
def raw_db(postgres_url: str) -> RawDatabase:
    return RawDatabase(postgres_url)


def partitions(raw_db: RawDatabase, table: str) -> set[str]:
    rows = raw_db.rows(PARTITIONS.format(f"onceward.{table}"))
    return {name.removeprefix(f"onceward.{table}_") for (name,) in rows}


async def test_partitions_are_created_ahead(store: Store, raw_db: RawDatabase) -> None:
    for name in partitions(raw_db, "payloads") - {"default"}:  # those of the migrations
        raw_db.rows(f"DROP TABLE onceward.payloads_{name}")
    await maintain(store)
    weeks = {Week.of(datetime.now(UTC) + timedelta(weeks=ahead)).label for ahead in range(5)}
    assert partitions(raw_db, "payloads") == {"default"} | weeks
    assert len(partitions(raw_db, "audit") - {"default", "history"}) == 2
    await finish(store, "a")
    assert raw_db.count("onceward.payloads_default") == 0


async def test_the_next_month_of_the_audit_trail_has_a_partition_of_its_own(
    store: Store, raw_db: RawDatabase
) -> None:
    await maintain(store)
    raw_db.rows(
        "INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject) "
        "VALUES (now() + interval '32 days', 'a', 'b', 'c', 'd', 'e')"
    )
    assert raw_db.count("onceward.audit_default") == 0
    assert raw_db.count("onceward.audit_history") == 0


async def test_a_month_of_the_audit_trail_goes_only_when_all_of_it_is_old(
    store: Store, raw_db: RawDatabase
) -> None:
    await maintain(store)
    this_month, next_month = itertools.islice(AUDIT.periods_from(datetime.now(UTC)), 2)
    assert await store.expired_audit(this_month[1] - timedelta(seconds=1)) == []
    assert await store.expired_audit(this_month[1]) == ["audit_history"]
    assert await store.expired_audit(next_month[1] - timedelta(seconds=1)) == ["audit_history"]


async def test_a_drop_of_audit_entries_waits_for_operators(
    store: Store, raw_db: RawDatabase
) -> None:
    with raw_db.connection() as operator:
        operator.execute("SELECT pg_advisory_xact_lock(7136231, 7)")
        dropping = asyncio.create_task(store.drop_audit("audit_history", datetime.now(UTC), ACT))
        await asyncio.sleep(0.3)
        assert not dropping.done()
    await dropping
    assert "history" not in partitions(raw_db, "audit")


def test_the_periods_of_a_table_follow_each_other_without_gaps() -> None:
    first = datetime(2027, 1, 31, 23, 59, tzinfo=UTC)
    months = [start for start, _ in itertools.islice(AUDIT.periods_from(first), 48)]
    assert months == [
        datetime(year, month, 1, tzinfo=UTC) for year in range(2027, 2031) for month in range(1, 13)
    ]
    weeks = list(itertools.islice(PAYLOADS.periods_from(first), 60))
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(weeks))
    assert {end - start for start, end in weeks} == {timedelta(days=7)}


async def test_one_process_does_the_maintenance(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "onceward.maintenance")
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        other = make_maintenance(two)
        async with one.elect() as first:
            assert first.is_elected
            assert await other.run() == postgres_maintenance.ANOTHER_PROCESS
            for _ in range(2):
                await other.run_if_elected()
        assert not await other.run()
    reason = postgres_maintenance.ANOTHER_PROCESS
    assert caplog.messages == [f"maintenance is not done here: {reason}"]  # once, not every hour


async def test_the_next_maintenance_may_start_before_the_server_notices_the_end_of_the_last(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_maintenance, "drop_connection", lambda _: None)
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        for store in (one, two, one):
            async with store.elect() as election:
                assert election.is_elected


async def test_two_maintenances_at_once_do_no_harm(postgres_url: str, raw_db: RawDatabase) -> None:
    """A lost connection ends an election while its process goes on."""
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await finish(one, "old")
        age(raw_db, 20)
        await asyncio.gather(one.make_partitions(), two.make_partitions())
    assert payloads(raw_db) == ["old"]


async def test_what_was_recorded_without_a_partition_is_moved(
    store: Store, raw_db: RawDatabase
) -> None:
    await finish(store, "old")
    age(raw_db, 20)
    assert raw_db.count("onceward.payloads_default") == 1
    await maintain(store)
    assert raw_db.count("onceward.payloads_default") == 0
    assert raw_db.count(f"onceward.{subject(20)}") == 1


async def test_audit_entries_without_a_partition_are_moved(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.rows("DROP TABLE onceward.audit_history")
    await act(store, "a")
    age_audit(raw_db, 100)
    assert raw_db.count("onceward.audit_default") == 1
    await maintain(store)
    assert (raw_db.count("onceward.audit_default"), raw_db.count("onceward.audit")) == (0, 1)
    with pytest.raises(psycopg.Error, match="append only"):
        raw_db.rows("DELETE FROM onceward.audit_default")


async def test_a_missing_partition_does_not_stop_recording(
    store: Store, raw_db: RawDatabase
) -> None:
    raw_db.rows(f"DROP TABLE onceward.{subject(0)}")
    await finish(store, "a")
    assert raw_db.count("onceward.payloads_default") == 1
    await maintain(store)  # leaves the current week alone: receivers write into it
    assert raw_db.count("onceward.payloads_default") == 1
    await finish(store, "b")
    assert payloads(raw_db) == ["a", "b"]


async def test_the_payloads_to_keep_take_the_place_of_their_partition(
    store: Store, raw_db: RawDatabase
) -> None:
    await finish(store, *(f"done{number}" for number in range(50)))
    await failed_job(store, "failed")
    age(raw_db, 20)
    step = (await maintain(store, payload_days=10))[subject(20)]
    assert step.kept == 1
    assert raw_db.count(f"onceward.{subject(20)}") == 1
    assert raw_db.count("onceward.payloads_default") == 0


async def test_a_dump_delays_a_drop_and_nothing_else(
    store: Store,
    raw_db: RawDatabase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(postgres_maintenance, "LOCK_PAUSE_SECONDS", 0.1)
    await finish(store, "old")
    age(raw_db, 20)
    await maintain(store)
    with raw_db.connection() as dump:
        dump.execute("SELECT count(*) FROM onceward.payloads")
        dropping = asyncio.create_task(make_maintenance(store, payload_days=10).run())
        longest = 0.0
        for number in range(100):
            if dropping.done():
                break
            started = time.monotonic()
            await record(store, arrival(f"new{number}"))
            longest = max(longest, time.monotonic() - started)
            await asyncio.sleep(0.01)
        assert "another transaction, such as a dump" in await dropping
        assert longest < 1.0
    assert "another transaction, such as a dump" in caplog.text
    assert payloads(raw_db)[0] == "old"
    assert set(await maintain(store, payload_days=10)) == {subject(20)}
    assert "old" not in payloads(raw_db)


@pytest.mark.parametrize("kind", ["table", "partition", "ledger"])
async def test_the_holder_of_a_lock_is_named(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(postgres_maintenance, "LOCK_TRIES", 1)
    monkeypatch.setattr(postgres_partitions, "_LEDGER_LOCK_SECONDS", 1)
    await finish(store, "old")
    age(raw_db, 20)
    await maintain(store)
    statement = {
        "table": "SELECT count(*) AS secret FROM onceward.payloads",
        "partition": f"LOCK TABLE onceward.{subject(20)} IN ACCESS SHARE MODE",
        "ledger": "SELECT pg_advisory_xact_lock(7136231, 7)",
    }[kind]
    with raw_db.connection() as dump:
        dump.execute("SET application_name = 'nightly dump'")
        dump.execute(statement)
        pid, since = dump.execute("SELECT pg_backend_pid(), now()").fetchone()
        reason = await make_maintenance(store, payload_days=10).run()
    assert (
        f"It is held by process {pid} (nightly dump, role postgres, idle in transaction, "
        f"since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC)." in reason
    )
    assert "secret" not in reason
    assert "Nothing was changed; the next maintenance tries again" in reason


async def test_a_short_transaction_does_not_prevent_a_drop(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_maintenance, "LOCK_PAUSE_SECONDS", 0.5)
    await finish(store, "old")
    age(raw_db, 20)
    await maintain(store)
    with raw_db.connection() as reader:
        reader.execute("SELECT count(*) FROM onceward.payloads")
        dropping = asyncio.create_task(maintain(store, payload_days=10))
        await asyncio.sleep(0.5)
    assert set(await dropping) == {subject(20)}


async def test_a_payload_of_the_first_moment_of_a_week_is_kept(
    store: Store, raw_db: RawDatabase
) -> None:
    await failed_job(store, "failed")
    await finish(store, "done")
    monday = Week.of(datetime.now(UTC) - timedelta(days=20)).starts_at
    for table in ("events", "payloads", "jobs"):
        raw_db.rows(f"UPDATE onceward.{table} SET received_at = '{monday}'")  # noqa: S608 - no outside data
    await maintain(store, payload_days=10)
    assert payloads(raw_db) == ["failed"]


async def test_a_job_cannot_begin_to_need_a_payload_that_is_dropped(
    store: Store, raw_db: RawDatabase
) -> None:
    """A requeue waits for the drop: both take the lock of operators' actions."""
    await record(store, *arrivals(2, type="no.handler"))
    age(raw_db, 20)
    with raw_db.connection() as operator:
        operator.execute("SELECT pg_advisory_xact_lock(7136231, 7)")
        dropping = asyncio.create_task(maintain(store, payload_days=10))
        await asyncio.sleep(0.3)
        assert not dropping.done()
        assert raw_db.count("onceward.payloads") == 2
    await dropping
    assert raw_db.count("onceward.payloads") == 0
    assert subject(20).removeprefix("payloads_") not in partitions(raw_db, "payloads")


async def test_a_table_in_the_place_of_a_partition_is_named(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has detached the partition: the rows cannot be moved, and nothing waits for it."""
    monkeypatch.setattr(postgres_maintenance, "LOCK_TRIES", 1)
    await finish(store, "old")
    age(raw_db, 20)
    raw_db.rows(f"CREATE TABLE onceward.{subject(20)} (LIKE onceward.payloads)")
    async with asyncio.timeout(20):
        reason = await make_maintenance(store).run()
    assert f"onceward.{subject(20)}, which exists" in reason
    assert payloads(raw_db) == ["old"]
