"""Jobs of one ordering key run one at a time and in the order of arrival; others do not wait."""

import json

import pytest

from onceward.model.events import Arrival
from onceward.model.jobs import HandlerEntry, JobStatus, QueueRules, Reschedule, Route
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import (
    ACT,
    BROKEN,
    EVERYTHING,
    SOURCES,
    arrival,
    claim,
    job_item,
    lease,
    opened,
    record,
)

ORDERED = HandlerEntry("credit", 3, (Route("invoice.paid"),), QueueRules(ordering_key="customer"))
LENIENT = HandlerEntry(
    "credit", 3, (Route("invoice.paid"),), QueueRules(ordering_key="customer", holds_key=False)
)


@pytest.fixture
async def ordered(store: Store) -> Store:
    """Return a store whose handler has an ordering key, and holds it after a failure."""
    await store.register(SOURCES, [ORDERED], [])
    return store


def keyed(event_id: str, customer: str | None = "ann") -> Arrival:
    body = {} if customer is None else {"customer": customer}
    return arrival(event_id, body=json.dumps(body).encode())


async def claimed(store: Store, **options: object) -> list[str]:
    """Claim jobs and return their events."""
    leased = (await claim(store, **options)).lease  # type: ignore[arg-type] # passed through
    return [job.event_id for job in leased.jobs] if leased else []


async def test_only_the_first_job_of_a_key_is_leased(ordered: Store) -> None:
    await record(ordered, keyed("a1"), keyed("b1", "bob"), keyed("a2"), keyed("b2", "bob"))
    assert await claimed(ordered) == ["a1", "b1"]
    assert await claimed(ordered) == []


async def test_the_next_job_of_a_key_follows_when_the_first_is_done(ordered: Store) -> None:
    await record(ordered, keyed("a1"), keyed("a2"), keyed("a3"))
    settled: list[int] = []
    for expected in ("a1", "a2", "a3"):
        leased = await lease(ordered, settled=settled)
        (job,) = leased.jobs
        assert (job.event_id, job.ordering_key) == (expected, "ann")
        assert await claimed(ordered) == []
        assert await ordered.settle_done(leased.token, job.id)
        settled = [job.id]


async def test_the_end_of_a_job_frees_its_own_key_beside_others(ordered: Store) -> None:
    await record(ordered, keyed("a1"), keyed("b1", "bob"), keyed("a2"), keyed("b2", "bob"))
    leased = await lease(ordered)
    assert await claimed(ordered) == []  # the second of each are parked
    second = leased.jobs[1].id
    assert await ordered.settle_done(leased.token, second)
    assert await claimed(ordered, settled=[second]) == ["b2"]


async def test_jobs_without_a_key_do_not_wait(ordered: Store) -> None:
    await record(ordered, *(keyed(f"n{number}", None) for number in range(3)))
    assert await claimed(ordered) == ["n0", "n1", "n2"]


async def test_a_job_in_backoff_holds_its_key(ordered: Store, raw_db: RawDatabase) -> None:
    await record(ordered, keyed("a1"), keyed("a2"), keyed("b1", "bob"))
    leased = await lease(ordered, limit=1)
    (job,) = leased.jobs
    assert await ordered.settle_error(leased.token, job.id, Reschedule(900.0, "no"), 0.1)
    assert await claimed(ordered, ended=[leased.token], settled=[job.id]) == ["b1"]
    raw_db.make_due()
    assert await claimed(ordered) == ["a1"]


async def test_a_job_that_failed_for_good_holds_its_key(ordered: Store) -> None:
    await record(ordered, keyed("a1"), keyed("a2"))
    leased = await lease(ordered)
    (job,) = leased.jobs
    assert await ordered.settle_error(leased.token, job.id, BROKEN, 0.1)
    assert await claimed(ordered, ended=[leased.token], settled=[job.id]) == []
    assert await ordered.requeue(job.id, ACT) is not None
    leased = await lease(ordered)
    assert [job.event_id for job in leased.jobs] == ["a1"]
    assert await ordered.settle_done(leased.token, job.id)
    assert await claimed(ordered, settled=[job.id]) == ["a2"]


async def test_a_failed_job_lets_its_key_go_on_if_the_handler_says_so(store: Store) -> None:
    await store.register(SOURCES, [LENIENT], [])
    await record(store, keyed("a1"), keyed("a2"), keyed("a3"))
    leased = await lease(store)
    (first,) = leased.jobs
    assert await claimed(store) == []
    assert await store.settle_error(leased.token, first.id, BROKEN, 0.1)
    second = await lease(store, settled=[first.id], looks_for_lost=False)
    assert [job.event_id for job in second.jobs] == ["a2"]
    # The first one, requeued, waits for the one in flight, and comes before the one behind it.
    assert await store.requeue(first.id, ACT) is not None
    assert await claimed(store) == []
    assert await store.settle_done(second.token, second.jobs[0].id)
    assert await claimed(store, settled=[second.jobs[0].id]) == ["a1"]


async def test_a_released_job_stays_the_first_of_its_key(ordered: Store) -> None:
    await record(ordered, keyed("a1"), keyed("a2"))
    leased = await lease(ordered)
    assert await claimed(ordered) == []
    await ordered.release(leased.token, [leased.jobs[0].id])
    assert await claimed(ordered) == ["a1"]


async def test_a_dead_worker_frees_its_keys(ordered: Store, raw_db: RawDatabase) -> None:
    await record(ordered, keyed("a1"), keyed("a2"), keyed("b1", "bob"), keyed("b2", "bob"))
    leased = await lease(ordered)
    assert await claimed(ordered) == []
    a1, _ = (job.id for job in leased.jobs)
    assert await ordered.settle_done(leased.token, a1)  # and the worker dies before its next claim
    raw_db.expire_leases()
    assert await claimed(ordered) == ["a2"]
    assert await claimed(ordered, solo=True) == ["b1"]
    assert await claimed(ordered) == []


async def test_a_key_is_free_after_a_cancelled_job(ordered: Store) -> None:
    await record(ordered, keyed("a1"), keyed("a2"), keyed("a3"))
    leased = await lease(ordered)
    assert await claimed(ordered) == []
    assert await ordered.cancel(leased.jobs[0].id, ACT) is not None
    assert await claimed(ordered) == ["a2"]
    assert not await ordered.settle_done(leased.token, leased.jobs[0].id)


async def test_many_waiting_jobs_of_one_key_do_not_hide_the_others(ordered: Store) -> None:
    await record(ordered, *(keyed(f"a{number}") for number in range(200)))
    await record(ordered, keyed("b1", "bob"))
    found: list[str] = []
    result = await claim(ordered)
    while result.next_due_seconds == 0.0:  # a worker looks again at once
        found += [job.event_id for job in result.lease.jobs] if result.lease else []
        result = await claim(ordered)
    assert found == ["a0", "b1"]


async def test_a_key_is_one_over_all_processes(postgres_url: str) -> None:
    async with (
        opened(postgres_url, handlers=[ORDERED]) as first,
        opened(postgres_url, handlers=[ORDERED]) as second,
    ):
        await record(first, keyed("a1"), keyed("a2"))
        leased = await lease(first)
        assert await claimed(second) == []
        await first.settle_done(leased.token, leased.jobs[0].id)
        assert await claimed(second, settled=[leased.jobs[0].id]) == ["a2"]


async def test_a_key_of_one_handler_does_not_hold_another_handler(store: Store) -> None:
    other = HandlerEntry("audit", 3, (Route("invoice.paid"),), QueueRules(ordering_key="customer"))
    await store.register(SOURCES, [ORDERED, other], [])
    await record(store, keyed("a1"), keyed("a2"))
    assert await claimed(store) == ["a1"]
    assert await claimed(store, handlers=["audit"]) == ["a1"]


async def test_a_held_job_does_not_hold_its_key(ordered: Store, raw_db: RawDatabase) -> None:
    await record(ordered, keyed("a1"), keyed("a2"))
    raw_db.rows(
        "UPDATE onceward.jobs SET status = 'failed', failure_type = 'held' "
        "WHERE id = (SELECT min(id) FROM onceward.jobs)"
    )
    assert await claimed(ordered) == ["a2"]


async def test_a_parked_job_reads_as_queued(ordered: Store) -> None:
    await record(ordered, keyed("a1"), keyed("a2"))
    await claimed(ordered)
    await claimed(ordered)
    waiting = [item for item in await ordered.jobs(EVERYTHING) if item.external_event_id == "a2"]
    assert waiting[0].status is JobStatus.QUEUED
    assert (await job_item(ordered, int(waiting[0].id))).ordering_key == "ann"
