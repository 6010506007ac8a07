"""The key of an effect is kept for days after its last use, and as long as a job may need it."""

from datetime import UTC, datetime, timedelta

import pytest

from onceward.model.admin import PageQuery
from onceward.model.retention import Purgeable
from onceward.ports import Store
from support.database import RawDatabase
from tests.archiving import moment
from tests.factories import ACT, arrival, failed_job, lease, record, working
from tests.maintaining import age, kept, maintain, purge_all
from tests.outside import KEY, Attempts, Bank


async def use_key(store: Store, key: str) -> bool:
    """Run a job that marks an effect."""
    await record(store, arrival(f"use {key} {datetime.now(UTC)}"))
    leased = await lease(store, limit=1)
    async with working(store) as work:
        is_first = await work.unit.mark_effect(leased.jobs[0].id, key, None)
        assert await work.unit.settle(leased.token, leased.jobs[0].id)
    await store.end_leases([leased.token])
    return is_first


async def test_the_days_of_a_key_count_from_its_last_use(store: Store, raw_db: RawDatabase) -> None:
    assert await use_key(store, "used")
    assert await use_key(store, "unused")
    age(raw_db, 8)
    assert not await use_key(store, "used")
    age(raw_db, 8)
    assert await purge_all(store, Purgeable.EFFECTS, effect_days=10) == 1
    assert await use_key(store, "unused")
    assert not await use_key(store, "used")


async def test_a_use_is_stored_once_a_day(store: Store, raw_db: RawDatabase) -> None:
    await use_key(store, "key")
    await use_key(store, "key")
    assert raw_db.value("SELECT used_at FROM onceward.effects") is None
    age(raw_db, 1.1)
    await use_key(store, "key")
    first = raw_db.value("SELECT used_at FROM onceward.effects")
    await use_key(store, "key")
    assert first is not None
    assert raw_db.value("SELECT used_at FROM onceward.effects") == first


@pytest.mark.parametrize("status", ["pending", "unknown"])
async def test_an_effect_without_a_known_outcome_is_never_purged(
    store: Store, raw_db: RawDatabase, status: str
) -> None:
    await use_key(store, "key")
    raw_db.rows(f"UPDATE onceward.effects SET status = '{status}'")  # noqa: S608 - no outside data
    age(raw_db, 1000)
    assert await purge_all(store, Purgeable.EFFECTS, effect_days=1) == 0
    assert raw_db.count("onceward.effects") == 1


async def test_a_failed_effect_is_purged(store: Store, raw_db: RawDatabase) -> None:
    await use_key(store, "key")
    raw_db.rows("UPDATE onceward.effects SET status = 'failed'")
    age(raw_db, 10)
    assert await purge_all(store, Purgeable.EFFECTS, effect_days=5) == 1


async def test_a_change_after_the_last_use_counts_as_a_use(
    store: Store, raw_db: RawDatabase
) -> None:
    await use_key(store, "key")
    raw_db.rows("UPDATE onceward.effects SET used_at = updated_at")
    age(raw_db, 10)
    raw_db.rows(f"UPDATE onceward.effects SET updated_at = {moment(raw_db, datetime.now(UTC))}")  # noqa: S608 - no outside data
    assert await purge_all(store, Purgeable.EFFECTS, effect_days=5) == 0


@pytest.mark.parametrize("change", ["", "parked = true", "status = 'failed'"])
async def test_the_oldest_unfinished_job_may_be_queued_parked_or_failed(
    store: Store, raw_db: RawDatabase, change: str
) -> None:
    future = datetime.now(UTC) + timedelta(days=1)
    assert await store.unfinished_jobs(future, 9) == []
    await record(store, arrival("old"))
    if change:
        raw_db.rows(f"UPDATE onceward.jobs SET {change}")  # noqa: S608 - no outside data
    age(raw_db, 10)
    await record(store, arrival("new"))
    (item,) = await store.jobs(PageQuery(limit=9, event_id="old"))
    (event,) = await store.events(PageQuery(limit=9, event_id="old"))
    (old,) = await store.unfinished_jobs(future, 1)
    assert (str(old.id), old.handler, old.status) == (item.id, "credit", item.status)
    assert old.received_at == event.received_at
    assert [job.id == old.id for job in await store.unfinished_jobs(future, 9)] == [True, False]
    assert await store.unfinished_jobs(old.received_at, 9) == []


async def test_the_job_that_keeps_effects_is_named(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "onceward.maintenance")
    assert await kept(store, effect_days=5) == {}
    job = await failed_job(store, "failed")
    assert await kept(store, effect_days=5) == {}  # a job of today keeps no key for longer
    age(raw_db, 10)
    step = (await kept(store, effect_days=5))["effects"]
    assert [each.id for each in step.jobs] == [job.id]
    await maintain(store, effect_days=5)
    (line,) = caplog.messages
    assert line.startswith("effects from before ")
    assert f"are kept for job {job.id} of 'credit' (failed, received " in line


async def test_a_job_that_may_still_run_finds_the_keys_of_its_time(
    store: Store, raw_db: RawDatabase
) -> None:
    """A failed job that used a key, and rolled back, would otherwise be the first to use it."""
    await use_key(store, "key")
    age(raw_db, 9)
    job = await failed_job(store, "failed")
    age(raw_db, 9)
    assert await purge_all(store, Purgeable.EFFECTS, effect_days=10) == 0
    assert await store.cancel(int(job.id), ACT)
    assert await purge_all(store, Purgeable.EFFECTS, effect_days=10) == 1


async def test_a_call_whose_result_is_read_again_counts_as_used(
    store: Store, raw_db: RawDatabase
) -> None:
    attempts = Attempts(store, Bank())
    await attempts.call(await attempts.begin("first"))
    age(raw_db, 0.9, "effects")
    await attempts.call(await attempts.begin("too soon"))
    assert raw_db.value("SELECT used_at FROM onceward.effects") is None
    age(raw_db, 7.1, "effects")
    await attempts.call(await attempts.begin("second"))
    assert attempts.bank.calls == [KEY]
    age(raw_db, 8, "effects")
    raw_db.rows("DELETE FROM onceward.jobs")
    assert await purge_all(store, Purgeable.EFFECTS, effect_days=10) == 0
    age(raw_db, 4, "effects")
    assert await purge_all(store, Purgeable.EFFECTS, effect_days=10) == 1
