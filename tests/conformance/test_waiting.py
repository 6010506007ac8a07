"""The list of jobs shows what a queued job waits for, and a job what waits behind it."""

from typing import Any

import pytest

from onceward.model.admin import JobDetail, JobItem, PageQuery, Pausable, WaitReason
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import ACT, EVERYTHING, arrival, arrivals, lease, record


class Keyed:
    """Four jobs of one key, all but the first parked."""

    def __init__(self, store: Store, raw_db: RawDatabase) -> None:
        self.store, self.raw_db = store, raw_db
        self.ids = [job for (job,) in raw_db.rows("SELECT id FROM onceward.jobs ORDER BY id")]

    def set(self, position: int, assignments: str) -> None:
        """Change one job."""
        self.raw_db.rows(f"UPDATE onceward.jobs SET {assignments} WHERE id = {self.ids[position]}")  # noqa: S608 - the test's own values

    async def item(self, position: int) -> JobItem:
        """Return one job from the list."""
        items = await self.store.jobs(EVERYTHING)
        return next(item for item in items if item.id == str(self.ids[position]))

    async def waits_for(self) -> list[int | None]:
        """Return, for each job, the position of the one that it waits for."""
        items = [await self.item(position) for position in range(len(self.ids))]
        ids = [item.waits_for for item in items]
        return [None if job is None else self.ids.index(int(job)) for job in ids]

    async def detail(self, position: int) -> JobDetail:
        """Return one job."""
        detail = await self.store.job(self.ids[position], attempts=9)
        assert detail is not None
        return detail


@pytest.fixture
async def keyed(store: Store, raw_db: RawDatabase) -> Keyed:
    """Record four events with one key."""
    await record(store, *arrivals(4))
    jobs = Keyed(store, raw_db)
    raw_db.rows("UPDATE onceward.jobs SET ordering_key = 'cus_1', parked = true")
    jobs.set(0, "parked = false")
    return jobs


async def test_a_job_without_a_key_waits_for_none(store: Store) -> None:
    await record(store, arrival())
    (item,) = await store.jobs(EVERYTHING)
    assert (item.ordering_key, item.waiting, item.waits_for) == (None, None, None)


async def test_a_parked_job_waits_for_the_first_of_its_key(keyed: Keyed) -> None:
    assert await keyed.waits_for() == [None, 0, 0, 0]
    first, second = await keyed.item(0), await keyed.item(1)
    assert (first.ordering_key, first.waiting) == ("cus_1", None)
    assert (second.ordering_key, second.waiting) == ("cus_1", WaitReason.KEY)


async def test_a_job_waits_for_a_failed_one_if_the_handler_holds(keyed: Keyed) -> None:
    keyed.set(0, "status = 'failed', failure_type = 'exhausted'")
    assert await keyed.waits_for() == [None, 0, 0, 0]
    keyed.raw_db.rows("UPDATE onceward.handlers SET holds_key = false")
    assert await keyed.waits_for() == [None, None, 1, 1]


async def test_a_job_waits_for_none_that_is_held_as_a_duplicate(keyed: Keyed) -> None:
    keyed.set(0, "status = 'failed', failure_type = 'held'")
    assert await keyed.waits_for() == [None, None, 1, 1]


@pytest.mark.parametrize("status", ["done", "cancelled", "ignored"])
async def test_a_job_waits_for_none_that_ended(keyed: Keyed, status: str) -> None:
    keyed.set(0, f"status = '{status}'")
    assert await keyed.waits_for() == [None, None, 1, 1]


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_job_waits_for_a_later_one_in_flight(keyed: Keyed, *, is_guarded: bool) -> None:
    keyed.set(0, "parked = true")
    for position in (1, 3):
        keyed.set(position, "status = 'done'")
    keyed.set(2, "parked = false")
    keyed.raw_db.add_lease([keyed.ids[2]], keyed.ids[2:3] if is_guarded else [])
    assert await keyed.waits_for() == [2 if is_guarded else None, None, None, None]


async def test_other_handlers_and_keys_do_not_count(keyed: Keyed) -> None:
    keyed.set(0, "handler = handler + 1")
    keyed.set(1, "ordering_key = 'cus_2'")
    assert await keyed.waits_for() == [None, None, None, 2]


async def test_a_job_that_runs_waits_for_nothing(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival())
    await lease(store)
    await store.pause(Pausable.HANDLER, "credit", ACT)
    (item,) = await store.jobs(EVERYTHING)
    assert (item.status, item.waiting) == ("in_progress", None)


@pytest.mark.parametrize("kind", Pausable)
async def test_a_queued_job_shows_a_pause(store: Store, keyed: Keyed, kind: Pausable) -> None:
    await store.pause(kind, {"handler": "credit", "source": "stripe"}[kind], ACT)
    assert {item.waiting for item in await store.jobs(EVERYTHING)} == {f"paused_{kind}"}
    keyed.set(0, "status = 'done'")
    assert (await keyed.item(0)).waiting is None
    assert (await keyed.detail(1)).waiting == f"paused_{kind}"


async def test_a_job_shows_how_many_wait_behind_it(keyed: Keyed) -> None:
    keyed.set(2, "status = 'failed'")
    assert [(await keyed.detail(position)).waiting_behind for position in range(4)] == [2, 1, 1, 0]
    keyed.set(3, "ordering_key = NULL")
    assert (await keyed.detail(0)).waiting_behind == 1
    assert (await keyed.detail(3)).waiting_behind == 0


async def test_the_jobs_behind_a_job_are_counted_up_to_a_limit(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.store.admin.MAX_WAITING_COUNTED", 2)
    assert (await keyed.detail(0)).waiting_behind == 2


async def test_jobs_can_be_filtered_by_their_key(keyed: Keyed) -> None:
    keyed.set(3, "ordering_key = 'cus_2'")
    keyed.set(1, "status = 'done'")

    async def found(**filters: Any) -> list[int]:
        items = await keyed.store.jobs(PageQuery(limit=9, **filters))
        return [keyed.ids.index(int(item.id)) for item in items]

    assert await found(ordering_key="cus_1") == [2, 1, 0]
    assert await found(ordering_key="cus_1", status="queued") == [2, 0]
    assert await found(ordering_key="cus_1", status="done") == [1]
    assert await found(ordering_key="cus_1", handler="notify") == []
    assert await found(ordering_key="cus_3") == []
