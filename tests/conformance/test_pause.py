"""An operator may pause a handler or a source; a resume wakes the jobs that waited for it."""

import asyncio
from datetime import UTC, datetime
from itertools import product

import pytest

from onceward.errors import NotFound, NotInState
from onceward.model.admin import PageQuery, Pausable, Pause
from onceward.operate.operator import Operator
from onceward.ports import Store
from onceward.runtime.failpoints import FailpointReached
from onceward.store.locks import Lock
from onceward.store.queue_admin import WAKE_PAGE_JOBS, WAKE_PAGES
from support.database import RawDatabase
from tests.factories import ACT, EVERYTHING, arrival, arrivals, job_item, lease, opened, record

NAMES = {Pausable.HANDLER: "credit", Pausable.SOURCE: "stripe"}
KINDS = pytest.mark.parametrize("kind", Pausable)


async def changes_of(store: Store, kind: Pausable) -> int:
    """Return how often the one of a kind was paused or resumed."""
    return len(await store.audit(PageQuery(limit=99, subject=f"{kind}:{NAMES[kind]}")))


async def paused_at(store: Store, kind: Pausable) -> object:
    items = await (store.handlers if kind is Pausable.HANDLER else store.sources)(EVERYTHING)
    (found,) = [item.paused_at for item in items if item.name == NAMES[kind]]
    return found


# The actions.


@KINDS
async def test_a_pause_and_a_resume_are_recorded_in_the_audit_trail(
    store: Store, kind: Pausable
) -> None:
    paused = await store.pause(kind, NAMES[kind], ACT)
    assert paused is not None
    assert paused.name == NAMES[kind]
    assert paused.paused_at == await paused_at(store, kind) is not None
    resumed = await store.resume(kind, NAMES[kind], ACT)
    assert resumed is not None
    assert (resumed.name, resumed.paused_at) == (NAMES[kind], None)
    assert await paused_at(store, kind) is None
    assert await store.audit(EVERYTHING) == [resumed.audit, paused.audit]
    subject = f"{kind}:{NAMES[kind]}"
    assert await store.audit(PageQuery(limit=1, subject=subject)) == [resumed.audit]
    assert await store.audit(PageQuery(limit=9, subject="job:1")) == []
    for entry, action in ((paused.audit, "pause"), (resumed.audit, "resume")):
        assert (entry.action, entry.subject) == (f"{action}_{kind}", f"{kind}:{NAMES[kind]}")
        assert (entry.actor, entry.reason, entry.job_id) == (ACT.actor, ACT.reason, None)


async def test_what_is_paused_can_be_read_by_every_process(
    store: Store, subtests: pytest.Subtests
) -> None:
    for kind, name in NAMES.items():
        with subtests.test(str(kind)):
            assert await store.pauses() == []
            paused = await store.pause(kind, name, ACT)
            assert paused is not None
            assert paused.paused_at is not None
            assert await store.pauses() == [Pause(kind, name, paused.paused_at)]
            await store.resume(kind, name, ACT)
            assert await store.pauses() == []


async def test_only_the_named_row_is_paused(store: Store, subtests: pytest.Subtests) -> None:
    for kind, name in NAMES.items():
        with subtests.test(str(kind)):
            await store.pause(kind, name, ACT)
            handlers, sources = await store.handlers(EVERYTHING), await store.sources(EVERYTHING)
            paused = [handler.name for handler in handlers if handler.paused_at]
            paused += [source.name for source in sources if source.paused_at]
            assert paused == [name]
            await store.resume(kind, name, ACT)


async def test_a_paused_one_cannot_be_paused_again(store: Store, subtests: pytest.Subtests) -> None:
    for kind, name in NAMES.items():
        with subtests.test(str(kind)):
            await store.pause(kind, name, ACT)
            before = await paused_at(store, kind)
            with pytest.raises(NotInState, match=f"The {kind} {name} is already paused"):
                await store.pause(kind, name, ACT)
            assert await paused_at(store, kind) == before
            assert await changes_of(store, kind) == 1
    assert len(await store.audit(EVERYTHING)) == len(NAMES)


async def test_only_a_paused_one_can_be_resumed(store: Store, subtests: pytest.Subtests) -> None:
    for kind, name in NAMES.items():
        with subtests.test(str(kind)):
            with pytest.raises(NotInState, match=f"The {kind} {name} is not paused"):
                await store.resume(kind, name, ACT)
            assert await store.audit(EVERYTHING) == []


async def test_an_unknown_name_changes_nothing(store: Store, subtests: pytest.Subtests) -> None:
    for kind in Pausable:
        with subtests.test(str(kind)):
            other = NAMES[Pausable.SOURCE if kind is Pausable.HANDLER else Pausable.HANDLER]
            for name in ("nobody", other, NAMES[kind].upper(), "", "'; --"):
                assert await store.pause(kind, name, ACT) is None
                assert await store.resume(kind, name, ACT) is None
            assert await store.audit(EVERYTHING) == []


async def test_a_text_that_no_name_can_have_is_not_found(
    store: Store, subtests: pytest.Subtests
) -> None:
    """Some servers decode a path into texts that a database cannot store."""
    operator = Operator(store, {})
    for kind, name in product(Pausable, ["", "a\0b", "\ud800", "x" * 256]):
        with subtests.test(f"{kind} {name!r:.20}"):
            for change in (operator.pause, operator.resume):
                with pytest.raises(NotFound, match=f"There is no {kind}"):
                    await change(kind, name, ACT)


async def test_one_of_many_concurrent_pauses_lands(store: Store, subtests: pytest.Subtests) -> None:
    for kind, name in NAMES.items():
        with subtests.test(str(kind)):
            calls = [store.pause(kind, name, ACT) for _ in range(6)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert sum(isinstance(result, NotInState) for result in results) == 5
            assert await changes_of(store, kind) == 1
    assert len(await store.audit(EVERYTHING)) == len(NAMES)


async def test_a_pause_that_does_not_commit_changes_nothing(
    database_url: str, subtests: pytest.Subtests
) -> None:
    for kind, name in NAMES.items():
        # The first transaction of the store is its registration.
        async with opened(database_url, failpoints="operate.written:raise:2") as store:
            with subtests.test(str(kind)):
                with pytest.raises(FailpointReached):
                    await store.pause(kind, name, ACT)
                assert await paused_at(store, kind) is None
                assert await store.audit(EVERYTHING) == []


async def test_a_pause_outlives_a_new_registration(
    database_url: str, subtests: pytest.Subtests
) -> None:
    async with opened(database_url) as store:
        for kind, name in NAMES.items():
            await store.pause(kind, name, ACT)
    async with opened(database_url) as store:
        for kind in Pausable:
            with subtests.test(str(kind)):
                assert await paused_at(store, kind) is not None


async def test_a_paused_source_still_records(store: Store) -> None:
    await store.pause(Pausable.SOURCE, "stripe", ACT)
    await record(store, arrival())
    (job,) = await store.jobs(EVERYTHING)
    assert (job.status, job.waiting) == ("queued", "paused_source")


# The jobs that a resume wakes.


@pytest.fixture
async def queue(store: Store, raw_db: RawDatabase) -> "Parked":
    """Pause a source with four parked jobs of one key."""
    await record(store, *arrivals(4))
    raw_db.rows("UPDATE onceward.jobs SET ordering_key = 'cus_1', parked = true")
    await store.pause(Pausable.SOURCE, "stripe", ACT)
    return Parked(store, raw_db)


class Parked:
    """The jobs of a paused source, by their position."""

    def __init__(self, store: Store, raw_db: RawDatabase) -> None:
        self.store, self.raw_db = store, raw_db
        self.ids = [job for (job,) in raw_db.rows("SELECT id FROM onceward.jobs ORDER BY id")]

    def set(self, position: int, assignments: str) -> None:
        """Change one job."""
        self.raw_db.rows(f"UPDATE onceward.jobs SET {assignments} WHERE id = {self.ids[position]}")  # noqa: S608 - the test's own values

    async def woken(self) -> list[int]:
        """Resume the source and return the positions of the jobs that are no longer parked."""
        await self.store.resume(Pausable.SOURCE, "stripe", ACT)
        rows = self.raw_db.rows("SELECT id FROM onceward.jobs WHERE NOT parked ORDER BY id")
        return [self.ids.index(job) for (job,) in rows]


async def test_a_resume_wakes_every_job_without_a_key(queue: Parked) -> None:
    queue.raw_db.rows("UPDATE onceward.jobs SET ordering_key = NULL")
    assert await queue.woken() == [0, 1, 2, 3]
    assert len((await lease(queue.store)).jobs) == 4


async def test_a_woken_job_is_due_at_once(queue: Parked) -> None:
    later = "9000000000000000" if queue.raw_db.is_sqlite else "now() + interval '1 day'"
    queue.set(0, f"available_at = {later}")
    assert await queue.woken() == [0]
    assert (await job_item(queue.store, queue.ids[0])).available_at <= datetime.now(UTC)


async def test_a_resume_wakes_the_first_job_of_a_key(queue: Parked) -> None:
    assert await queue.woken() == [0]


async def test_each_handler_and_each_key_has_a_first_job(queue: Parked) -> None:
    queue.set(2, "ordering_key = 'cus_2'")
    other = queue.raw_db.value("SELECT id FROM onceward.handlers WHERE name = 'notify'")
    queue.set(3, f"handler = {other}")
    assert await queue.woken() == [0, 2, 3]


async def test_a_job_behind_a_queued_one_that_is_not_parked_stays(queue: Parked) -> None:
    queue.set(0, "parked = false")
    assert await queue.woken() == [0]  # it was not parked before


async def test_the_order_is_that_of_the_events(queue: Parked) -> None:
    """Ids of jobs may be in another order, if two receivers recorded them at once."""
    queue.raw_db.rows("UPDATE onceward.events SET id = 1000000 WHERE event_id = 'evt_0'")
    queue.set(0, "event = 1000000")
    assert await queue.woken() == [1]


async def test_a_job_behind_a_failed_one_stays_if_the_handler_holds(queue: Parked) -> None:
    queue.set(0, "status = 'failed', failure_type = 'permanent', parked = false")
    assert await queue.woken() == [0]


async def test_a_failed_job_holds_no_key_of_a_handler_that_skips(queue: Parked) -> None:
    queue.set(0, "status = 'failed', failure_type = 'permanent', parked = false")
    queue.raw_db.rows("UPDATE onceward.handlers SET holds_key = false")
    assert await queue.woken() == [0, 1]


async def test_a_job_that_is_held_as_a_duplicate_holds_no_key(queue: Parked) -> None:
    queue.set(0, "status = 'failed', failure_type = 'held', parked = false")
    assert await queue.woken() == [0, 1]


@pytest.mark.parametrize("status", ["done", "cancelled", "ignored"])
async def test_a_job_that_ended_holds_no_key(queue: Parked, status: str) -> None:
    queue.set(0, f"status = '{status}', parked = false")
    assert await queue.woken() == [0, 1]


async def test_a_job_stays_while_a_later_one_of_its_key_is_in_flight(queue: Parked) -> None:
    queue.set(2, "parked = false")
    queue.raw_db.add_lease(queue.ids[2:3], queue.ids[2:3])
    assert await queue.woken() == [2]


async def test_a_settled_job_of_a_lease_is_not_in_flight(queue: Parked) -> None:
    queue.set(2, "parked = false, status = 'done'")
    queue.raw_db.add_lease(queue.ids[2:3], queue.ids[2:3])
    assert await queue.woken() == [0, 2]


async def test_a_job_that_was_taken_from_its_lease_is_not_in_flight(queue: Parked) -> None:
    queue.set(2, "parked = false")
    queue.raw_db.add_lease([], queue.ids[2:3])
    assert await queue.woken() == [0, 2]


async def test_jobs_of_another_paused_source_stay(queue: Parked) -> None:
    await record(queue.store, arrival("other", source="ingest"))
    queue.raw_db.rows("UPDATE onceward.jobs SET ordering_key = NULL, parked = true")
    await queue.store.pause(Pausable.SOURCE, "ingest", ACT)
    assert await queue.woken() == [0, 1, 2, 3]


async def wake_pages(store: Store, limit: int) -> list[int]:
    """Look at all parked jobs, and return how many were woken on each page."""
    counts: list[int] = []
    last: int | None = 0
    async with store._transaction(Lock.CLAIMS) as transaction:  # type: ignore[attr-defined]
        while last is not None:
            (page,) = await transaction.run("wake_parked", after=last, limit=limit)
            counts.append(page["woken"])
            last = page["last"]
    return counts


async def test_parked_jobs_are_looked_at_page_by_page(store: Store, raw_db: RawDatabase) -> None:
    await record(store, *arrivals(7))
    raw_db.rows("UPDATE onceward.jobs SET parked = true")
    ids = [job for (job,) in raw_db.rows("SELECT id FROM onceward.jobs ORDER BY id")]
    raw_db.rows(f"UPDATE onceward.jobs SET ordering_key = 'a' WHERE id <> {ids[4]}")  # noqa: S608 - the test's own values
    assert await wake_pages(store, 3) == [1, 1, 0, 0]
    assert raw_db.rows("SELECT id FROM onceward.jobs WHERE NOT parked ORDER BY id") == [
        (ids[0],),
        (ids[4],),
    ]


async def test_a_page_in_which_every_job_is_woken_is_not_the_last(
    store: Store, raw_db: RawDatabase
) -> None:
    await record(store, *arrivals(5))
    raw_db.rows("UPDATE onceward.jobs SET parked = true")
    assert await wake_pages(store, 2) == [2, 2, 1, 0]


async def test_a_resume_looks_at_a_bounded_number_of_jobs(
    store: Store, raw_db: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WAKE_PAGES * WAKE_PAGE_JOBS == 10_000
    monkeypatch.setattr("onceward.store.queue_admin.WAKE_PAGE_JOBS", 2)
    monkeypatch.setattr("onceward.store.queue_admin.WAKE_PAGES", 2)
    still_paused = [arrival(f"other_{number}", source="ingest") for number in range(2)]
    await record(store, *still_paused)
    await record(store, *arrivals(5))
    raw_db.rows("UPDATE onceward.jobs SET parked = true")
    for source in ("ingest", "stripe"):
        await store.pause(Pausable.SOURCE, source, ACT)
    await store.resume(Pausable.SOURCE, "stripe", ACT)
    assert raw_db.value("SELECT count(*) FROM onceward.jobs WHERE parked") == 2 + 3


# The lists.


async def test_the_list_of_handlers_shows_their_rules(store: Store, raw_db: RawDatabase) -> None:
    raw_db.rows(
        "UPDATE onceward.handlers SET ordering_key = 'data.id', holds_key = false, "
        "concurrency = 4, rate_interval_seconds = 0.6 WHERE name = 'credit'"
    )
    notify, credit = await store.handlers(EVERYTHING)
    assert (credit.name, credit.max_attempts) == ("credit", 3)
    assert (credit.ordering_key, credit.on_head_failed) == ("data.id", "continue")
    assert (credit.concurrency, credit.rate, credit.paused_at) == (4, "100/m", None)
    assert (notify.name, notify.on_head_failed) == ("notify", "hold")
    assert (notify.ordering_key, notify.concurrency, notify.rate) == (None, None, None)


RATES = {
    "1/s": 1.0,
    "3/s": 1 / 3,
    "100/m": 0.6,
    "1/m": 60.0,
    "100/h": 36.0,
    "7/h": 3600 / 7,
    "5/d": 86400 / 5,
    "8.57/m": 7.0,
}
"""Rates, and their intervals in seconds."""


async def test_a_rate_is_shown_as_it_is_written(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for rate, seconds in RATES.items():
        with subtests.test(rate):
            raw_db.rows(f"UPDATE onceward.handlers SET rate_interval_seconds = {seconds!r}")  # noqa: S608 - the test's own values
            assert {item.rate for item in await store.handlers(EVERYTHING)} == {rate}


async def test_the_lists_of_names_are_paged(store: Store) -> None:
    for read, names in (
        (store.handlers, ["notify", "credit"]),
        (store.sources, ["stripe", "ingest"]),
    ):
        (first,) = await read(PageQuery(limit=1))
        rest = await read(PageQuery(limit=9, after=int(first.id)))
        assert [item.name for item in (first, *rest)] == names
