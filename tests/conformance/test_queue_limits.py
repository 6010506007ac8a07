"""Claims are fair to every handler, and keep to its concurrency, its rate and its pauses."""

import asyncio
import time
from collections import Counter

import pytest

from onceward.model.admin import Pausable
from onceward.model.jobs import HandlerEntry, QueueRules, Reschedule, Route
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import (
    ACT,
    SOURCES,
    arrival,
    arrivals,
    claim,
    lease,
    opened,
    record,
)

BOTH = ("credit", "notify")


def limited(**rules: object) -> HandlerEntry:
    return HandlerEntry("credit", 3, (Route("invoice.paid"),), QueueRules(**rules))  # type: ignore[arg-type] # passed through


async def claimed(store: Store, **options: object) -> list[str]:
    """Claim jobs and return their events."""
    leased = (await claim(store, **options)).lease  # type: ignore[arg-type] # passed through
    return [job.event_id for job in leased.jobs] if leased else []


# Fairness.


async def test_every_handler_with_due_jobs_has_a_share_of_a_claim(store: Store) -> None:
    await store.record(arrivals(50))
    await store.record(arrivals(3, type="order.new", prefix="order"))
    leased = await lease(store, handlers=BOTH, limit=10)
    assert Counter(job.handler for job in leased.jobs) == {"credit": 7, "notify": 3}
    leased = await lease(store, handlers=BOTH, limit=10)
    assert Counter(job.handler for job in leased.jobs) == {"credit": 10}


async def test_no_more_jobs_of_a_handler_are_leased_than_wanted(store: Store) -> None:
    await store.record([*arrivals(9), *arrivals(9, type="order.new", prefix="order")])
    leased = await lease(store, handlers={"credit": 2, "notify": 5}, limit=10)
    assert Counter(job.handler for job in leased.jobs) == {"credit": 2, "notify": 5}
    assert await claimed(store, handlers={"credit": 0, "notify": 0}) == []


async def test_two_fresh_jobs_come_before_each_that_came_back(store: Store) -> None:
    await store.record(arrivals(6, prefix="retried"))
    leased = await lease(store)
    for job in leased.jobs:
        await store.settle_error(leased.token, job.id, Reschedule(0.0, "again"), 0.1)
    await store.record(arrivals(6, prefix="fresh"))
    events = await claimed(store, limit=6, ended=[leased.token])
    assert Counter(event.partition("_")[0] for event in events) == {"fresh": 4, "retried": 2}


async def test_a_job_that_comes_back_is_found_behind_later_ones(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, arrival("old"))
    raw_db.rows(f"UPDATE onceward.jobs SET available_at = {raw_db.past}")  # noqa: S608 - no outside data
    leased = await lease(store)
    await record(store, arrival("new"))
    assert await claimed(store) == ["new"]
    assert await claimed(store) == []
    await store.release(leased.token, [job.id for job in leased.jobs])
    assert await claimed(store) == ["old"]


# Concurrency.


async def test_no_more_jobs_are_in_flight_than_the_concurrency_allows(postgres_url: str) -> None:
    entries = [limited(concurrency=3)]
    async with (
        opened(postgres_url, handlers=entries) as first,
        opened(postgres_url, handlers=entries) as second,
    ):
        await first.record(arrivals(9))
        leased = await lease(first, limit=2)
        assert len(await claimed(second)) == 1
        assert await claimed(first) == []
        await first.settle_done(leased.token, leased.jobs[0].id)
        assert len(await claimed(second)) == 1
        await first.settle_error(leased.token, leased.jobs[1].id, Reschedule(900.0, "later"), 0.1)
        assert len(await claimed(first)) == 1


async def test_a_limited_handler_does_not_limit_others(store: Store) -> None:
    notify = HandlerEntry("notify", 3, (Route("order.*"),))
    await store.register(SOURCES, [limited(concurrency=1), notify], [])
    await store.record([*arrivals(5), *arrivals(5, type="order.new", prefix="order")])
    leased = await lease(store, handlers=BOTH)
    assert Counter(job.handler for job in leased.jobs) == {"credit": 1, "notify": 5}


# Rates.


async def test_a_rate_spreads_the_jobs_over_time(store: Store) -> None:
    await store.register(SOURCES, [limited(rate_interval_seconds=0.3)], [])
    await store.record(arrivals(5))
    first = await claim(store)
    assert first.lease is not None
    assert len(first.lease.jobs) == 1
    assert first.next_due_seconds == pytest.approx(0.3, abs=0.1)
    assert await claimed(store) == []
    await asyncio.sleep(0.35)
    assert len(await claimed(store)) == 1
    assert await claimed(store) == []


async def test_a_high_rate_is_used_in_bursts_of_a_tenth_of_a_second(store: Store) -> None:
    await store.register(SOURCES, [limited(rate_interval_seconds=0.01)], [])
    await store.record(arrivals(100))
    assert len(await claimed(store, limit=100)) == 10


async def test_a_rate_counts_the_jobs_of_many_small_claims(store: Store) -> None:
    interval_seconds = 0.02
    await store.register(SOURCES, [limited(rate_interval_seconds=interval_seconds)], [])
    await store.record(arrivals(60))
    started = time.monotonic()
    taken = [event for _ in range(60) for event in await claimed(store, limit=1)]
    allowed = 0.1 / interval_seconds + (time.monotonic() - started) / interval_seconds
    assert 5 <= len(taken) <= allowed + 1


async def test_a_rate_that_was_not_used_is_not_saved_up(store: Store, raw_db: RawDatabase) -> None:
    await store.register(SOURCES, [limited(rate_interval_seconds=0.05)], [])
    await store.record(arrivals(100))
    assert len(await claimed(store, limit=100)) == 2
    raw_db.rows(f"UPDATE onceward.rates SET used_until = {raw_db.past}")  # noqa: S608 - no outside data
    assert len(await claimed(store, limit=100)) == 2


# Pauses.


async def test_jobs_of_a_paused_handler_wait(store: Store) -> None:
    await store.record([*arrivals(2), *arrivals(2, type="order.new", prefix="order")])
    await store.pause(Pausable.HANDLER, "credit", ACT)
    assert await claimed(store, handlers=BOTH) == ["order_0", "order_1"]
    await store.resume(Pausable.HANDLER, "credit", ACT)
    assert await claimed(store, handlers=BOTH) == ["evt_0", "evt_1"]


async def test_a_paused_source_records_and_its_jobs_wait(store: Store) -> None:
    await store.pause(Pausable.SOURCE, "stripe", ACT)
    await store.record(arrivals(50))
    await record(store, arrival("other", source="ingest"))
    found = [event for _ in range(4) for event in await claimed(store)]
    assert found == ["other"]
    await store.resume(Pausable.SOURCE, "stripe", ACT)
    assert len(await claimed(store, limit=100)) == 50


async def test_a_source_that_is_paused_again_keeps_waiting(store: Store) -> None:
    for _ in range(2):
        await store.pause(Pausable.SOURCE, "stripe", ACT)
        await store.record(arrivals(3))
        assert await claimed(store) == []
        await store.resume(Pausable.SOURCE, "stripe", ACT)
    assert len(await claimed(store)) == 3
