"""Watermarks: the newest version of each key commits with the job that applied it."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any, TypeVar

import pytest

from onceward.errors import PermanentError, StaleEvent, StoreBlocked, TransactionMisuse
from onceward.model.admin import PageQuery
from onceward.model.events import ProcessingState
from onceward.model.jobs import FailureType, Ignore, JobStatus, Reschedule
from onceward.model.retention import Purgeable
from onceward.model.versions import Version, Watermark
from onceward.ports import Store
from onceward.runtime.sql_text import parse
from onceward.work.running.staleness import VersionedJob
from support.database import RawDatabase
from support.processes import eventually_async
from tests.conformance.test_altered_rows import add_trigger, discard_inserts, drop_trigger
from tests.factories import (
    ACT,
    BROKEN,
    EVERYTHING,
    arrival,
    claim,
    failed_job,
    job_item,
    lease,
    leased_job,
    opened,
    record,
    start_task,
    working,
)

T = TypeVar("T")
KEY = "sub_1"
STALE = Ignore("stale: version 5 is older than 7, which event evt_9 applied")


def mark(version: Version | int, event_id: str = "evt_1", source: str = "stripe") -> Watermark:
    value = version if isinstance(version, str) else Decimal(version)
    return Watermark(value, event_id, source)


def versioned(new: Watermark, *, key: str = KEY, even_if_stale: bool = False) -> VersionedJob:
    return VersionedJob("credit", "created", key, new, even_if_stale)


async def apply(
    store: Store, new: Watermark, *, key: str = KEY, even_if_stale: bool = False
) -> Watermark | None:
    """Apply a version in a transaction of its own, and return the watermark of the key."""
    async with store.begin(str) as transaction:
        await versioned(new, key=key, even_if_stale=even_if_stale).advance_watermark(transaction)
        await transaction.commit()
    return await store.watermark("credit", key)


async def test_a_forgotten_watermark_is_audited_and_the_next_version_sets_it(
    store: Store,
) -> None:
    await apply(store, mark(10**12, "evt_9"))
    forgotten = await store.forget_watermark("credit", KEY, ACT)
    assert forgotten is not None
    found = forgotten.watermark
    assert (found.handler, found.key, found.version) == ("credit", KEY, str(10**12))
    assert (found.version_kind, found.event_id, found.source) == ("number", "evt_9", "stripe")
    (entry,) = await store.audit(EVERYTHING)
    assert entry == forgotten.audit
    assert (entry.action, entry.subject) == ("forget_watermark", f"watermark:credit:{KEY}")
    assert await store.watermark("credit", KEY) is None
    assert await apply(store, mark(5)) == mark(5)


async def test_a_watermark_that_does_not_exist_is_not_forgotten(store: Store) -> None:
    await apply(store, mark(5))
    for handler, key in ("credit", "other"), ("notify", KEY), ("unknown", KEY):
        assert await store.forget_watermark(handler, key, ACT) is None
    assert await store.audit(EVERYTHING) == []
    assert await store.watermark("credit", KEY) == mark(5)


async def test_a_watermark_is_forgotten_after_the_transaction_that_sets_it(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store:
        await apply(store, mark(5))
        async with store.begin(str) as transaction:
            await versioned(mark(6)).advance_watermark(transaction)
            forgetting = asyncio.create_task(store.forget_watermark("credit", KEY, ACT))
            done, _ = await asyncio.wait([forgetting], timeout=0.2)
            assert not done
            await transaction.commit()
        forgotten = await forgetting
        assert forgotten is not None
        assert forgotten.watermark.version == "6"


async def test_watermarks_are_listed_newest_first(store: Store) -> None:
    for key in ("a", "b", "c"):
        async with store.begin(str) as transaction:
            await versioned(mark(key), key=key).advance_watermark(transaction)
            await transaction.commit()
    first = await store.watermarks(PageQuery(limit=2))
    assert [(each.key, each.version, each.version_kind) for each in first] == [
        ("c", "c", "text"),
        ("b", "b", "text"),
    ]
    last = await store.watermarks(PageQuery(limit=2, after=int(first[-1].id)))
    assert [each.key for each in last] == ["a"]
    for query, keys in (
        (PageQuery(limit=9, handler="credit", key="b"), ["b"]),
        (PageQuery(limit=9, handler="notify"), []),
        (PageQuery(limit=9, key="c"), ["c"]),
    ):
        assert [each.key for each in await store.watermarks(query)] == keys


async def test_a_watermark_commits_with_the_job(store: Store) -> None:
    token, job = await leased_job(store)
    assert await store.watermark("credit", KEY) is None
    async with working(store) as work:
        last_step = versioned(mark(5)).advance_watermark
        assert await work.unit.settle(token, job.id, last_step)
    assert await store.watermark("credit", KEY) == mark(5)
    assert await store.job_status(job.id) is JobStatus.DONE


async def test_a_watermark_rolls_back_with_the_job(store: Store) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:

        async def fail(transaction: object) -> None:
            await versioned(mark(5)).advance_watermark(transaction)  # type: ignore[arg-type]
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work.unit.settle(token, job.id, fail)
    assert await store.watermark("credit", KEY) is None
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_a_watermark_only_goes_up(store: Store) -> None:
    assert await apply(store, mark(5, "evt_5")) == mark(5, "evt_5")
    assert await apply(store, mark(7, "evt_7")) == mark(7, "evt_7")
    reason = r"^stale: version 6 is older than 7, which event evt_7 applied$"
    with pytest.raises(StaleEvent, match=reason):
        await apply(store, mark(6, "evt_6"))
    with pytest.raises(StaleEvent):
        await versioned(mark(6, "evt_6")).require_fresh(store)
    assert await store.watermark("credit", KEY) == mark(7, "evt_7")
    await versioned(mark(7, "evt_7")).require_fresh(store)
    assert await apply(store, mark(7, "evt_7")) == mark(7, "evt_7")  # a retry of the same event


async def test_a_tie_is_decided_by_the_event_id(store: Store) -> None:
    assert await apply(store, mark(5, "evt_2")) == mark(5, "evt_2")
    reason = r"^stale: event evt_2 applied the same version 5 and wins by its id$"
    with pytest.raises(StaleEvent, match=reason):
        await apply(store, mark(5, "evt_1"))
    assert await apply(store, mark(5, "evt_3")) == mark(5, "evt_3")
    reason = r"^stale: event evt_3 applied the same version 5 and wins by its source$"
    with pytest.raises(StaleEvent, match=reason):
        await apply(store, mark(5, "evt_3", "ingest"))


async def test_every_version_is_stored_exactly(store: Store) -> None:
    huge = 10**999 + 1
    versions: tuple[Version | int, ...] = (
        0,
        Decimal("-1.50"),
        Decimal("1e-400"),
        huge,
        "",
        "a\0b",
        "\"'\\é\U0001f600",
    )
    for number, version in enumerate(versions):
        key, new = str(number), mark(version)
        async with store.begin(str) as transaction:
            assert await transaction.lock_watermark("credit", key, new) == new
            await transaction.commit()
        assert await store.watermark("credit", key) == new


async def test_keys_and_handlers_have_watermarks_of_their_own(store: Store) -> None:
    await apply(store, mark(7))
    assert await store.watermark("notify", KEY) is None
    assert await store.watermark("credit", "sub_2") is None
    async with store.begin(str) as transaction:
        await versioned(mark(5), key="sub_2").advance_watermark(transaction)
        await replace(versioned(mark(6)), handler="notify").advance_watermark(transaction)
        await transaction.commit()
    assert await store.watermark("credit", KEY) == mark(7)
    assert await store.watermark("credit", "sub_2") == mark(5)
    assert await store.watermark("notify", KEY) == mark(6)


async def test_raising_one_watermark_leaves_all_others(store: Store) -> None:
    others = [("notify", KEY), ("credit", "sub_2"), ("credit", KEY.upper()), ("credit", f"{KEY} ")]
    await apply(store, mark(7))
    async with store.begin(str) as transaction:
        for handler, key in others:
            other = replace(versioned(mark(5), key=key), handler=handler)
            await other.advance_watermark(transaction)
        await transaction.commit()
    newest = mark(8, "evt_8", "github")
    assert await apply(store, newest) == newest
    assert [await store.watermark(*other) for other in others] == [mark(5)] * len(others)


async def test_the_reason_shows_long_versions_and_ids_up_to_a_length(store: Store) -> None:
    await apply(store, mark("b" * 81, "e" * 80))
    with pytest.raises(StaleEvent) as raised:
        await apply(store, mark("a" * 80))
    shown = f"version {'a' * 80} is older than {'b' * 79}…, which event {'e' * 80} applied"
    assert str(raised.value) == f"stale: {shown}"


@pytest.mark.parametrize(("first", "second"), [(5, "6"), ("6", 5)])
async def test_numbers_and_texts_do_not_mix(store: Store, first: Version, second: Version) -> None:
    await apply(store, mark(first, "evt_9"))
    kinds = {int: "a number", str: "a text"}
    message = (
        f"version created is {kinds[type(second)]}, but event evt_9 had {kinds[type(first)]} for "
        "the same version_key; the versions of a key must be all numbers or all texts: if the "
        "sender changed the kind for good, forget the watermark, then requeue"
    )
    with pytest.raises(PermanentError) as raised:
        await apply(store, mark(second))
    assert str(raised.value) == message
    with pytest.raises(PermanentError):
        await versioned(mark(second)).require_fresh(store)
    assert await store.watermark("credit", KEY) == mark(first, "evt_9")


async def test_a_person_may_apply_a_stale_event_and_the_watermark_stays(store: Store) -> None:
    await apply(store, mark(7, "evt_7"))
    await versioned(mark(5), even_if_stale=True).require_fresh(store)
    assert await apply(store, mark(5), even_if_stale=True) == mark(7, "evt_7")
    assert await apply(store, mark(8), even_if_stale=True) == mark(8)


# Two transactions at once. On SQLite the second one begins when the first has ended.

WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


async def start_waiting(raw_db: RawDatabase, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task that must wait for the open transaction, and return when it does."""
    task = await start_task(call)

    async def has_reached_the_lock() -> bool:
        return task.done() or raw_db.is_sqlite or bool(raw_db.value(WAITING))

    await eventually_async(has_reached_the_lock, "the second transaction waits")
    assert not task.done()
    return task


async def test_the_second_of_two_transactions_waits_for_the_first_and_sees_its_version(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for newer, exists in product((7, 3), (True, False)):
        key = f"{newer}, {'changed' if exists else 'first'}"
        with subtests.test(key):
            if exists:
                await apply(store, mark(1), key=key)
            async with store.begin(str) as transaction:
                await versioned(mark(newer, "first"), key=key).advance_watermark(transaction)
                second = await start_waiting(raw_db, apply(store, mark(5, "second"), key=key))
                await transaction.commit()
            if newer == 7:
                with pytest.raises(StaleEvent):
                    await second
                assert await store.watermark("credit", key) == mark(7, "first")
            else:
                assert await second == mark(5, "second")


@pytest.mark.parametrize("exists", [True, False], ids=["changed", "first"])
async def test_the_second_of_two_transactions_ignores_what_the_first_rolls_back(
    store: Store, raw_db: RawDatabase, *, exists: bool
) -> None:
    if exists:
        await apply(store, mark(1))
    async with store.begin(str) as transaction:
        await versioned(mark(7, "first")).advance_watermark(transaction)
        second = await start_waiting(raw_db, apply(store, mark(5, "second")))
    assert await second == mark(5, "second")


async def test_a_watermark_that_was_only_read_is_locked_too(
    store: Store, raw_db: RawDatabase
) -> None:
    async def lock() -> Watermark:
        async with store.begin(str) as transaction:
            return await transaction.lock_watermark("credit", KEY, mark(7))

    await apply(store, mark(5))
    async with store.begin(str) as transaction:
        assert await transaction.lock_watermark("credit", KEY, mark(6)) == mark(5)
        second = await start_waiting(raw_db, lock())
    assert await second == mark(5)


# Settling a stale job.


async def test_a_stale_job_is_ignored(store: Store, raw_db: RawDatabase) -> None:
    token, job = await leased_job(store)
    assert await store.settle_error(token, job.id, STALE, 0.1)
    item = await job_item(store, job.id)
    assert (item.status, item.failure_type) == (JobStatus.IGNORED, FailureType.STALE)
    assert (item.last_error, item.attempts) == (STALE.error, 1)
    assert item.finished_at is not None
    (event,) = await store.events(EVERYTHING)
    assert event.processing_state is ProcessingState.IGNORED
    assert event.processed_at == item.finished_at
    assert raw_db.count("onceward.attempts") == 0
    assert not await store.settle_error(token, job.id, STALE, 0.1)
    assert not await store.settle_done(token, job.id)
    assert (await claim(store)).lease is None


async def test_a_worker_without_its_lease_ignores_nothing(
    store: Store, raw_db: RawDatabase
) -> None:
    token, job = await leased_job(store)
    raw_db.expire_leases()
    await lease(store, solo=True)
    assert not await store.settle_error(token, job.id, STALE, 0.1)
    assert await store.job_status(job.id) is JobStatus.IN_PROGRESS


async def test_a_job_that_was_released_is_not_ignored(store: Store) -> None:
    await record(store, arrival("a"), arrival("b"))
    leased = await lease(store)
    released, kept = (job.id for job in leased.jobs)
    await store.release(leased.token, [released])
    assert not await store.settle_error(leased.token, released, STALE, 0.1)
    assert await store.job_status(released) is JobStatus.QUEUED
    assert await store.settle_done(leased.token, kept)


async def test_a_job_that_is_done_is_not_ignored(store: Store) -> None:
    token, job = await leased_job(store)
    assert await store.settle_done(token, job.id)
    assert not await store.settle_error(token, job.id, STALE, 0.1)
    item = await job_item(store, job.id)
    assert (item.status, item.failure_type, item.attempts) == (JobStatus.DONE, None, 1)


async def test_ignoring_one_job_leaves_the_others_leased(store: Store) -> None:
    await record(store, arrival("a"), arrival("b"))
    leased = await lease(store)
    first, second = (job.id for job in leased.jobs)
    assert await store.settle_error(leased.token, first, STALE, 0.1)
    assert await store.settle_done(leased.token, second)


# Requeueing a stale job.


async def stale_job(store: Store) -> int:
    token, job = await leased_job(store)
    assert await store.settle_error(token, job.id, STALE, 0.1)
    return job.id


async def test_a_stale_job_that_ran_alone_may_run_beside_others_again(
    store: Store, raw_db: RawDatabase
) -> None:
    _, job = await leased_job(store)
    raw_db.expire_leases()
    alone = await lease(store, solo=True)
    assert await store.settle_error(alone.token, job.id, STALE, 0.1)
    await store.requeue(job.id, ACT)
    assert [leased.id for leased in (await lease(store)).jobs] == [job.id]


@pytest.mark.parametrize(
    ("even_if_stale", "action"),
    [(False, "manual_requeue"), (True, "manual_requeue_even_if_stale")],
)
async def test_a_stale_job_can_be_requeued(
    store: Store, *, even_if_stale: bool, action: str
) -> None:
    job = await stale_job(store)
    requeued = await store.requeue(job, ACT, even_if_stale=even_if_stale)
    assert requeued is not None
    assert requeued.audit.action == action
    assert await store.audit(EVERYTHING) == [requeued.audit]
    item = await job_item(store, job)
    assert (item.status, item.failure_type, item.finished_at) == (JobStatus.QUEUED, None, None)
    assert [bool(leased.even_if_stale) for leased in (await lease(store)).jobs] == [even_if_stale]


async def test_the_word_of_the_operator_lasts_until_the_job_is_done(
    store: Store, raw_db: RawDatabase
) -> None:
    job = await stale_job(store)
    await store.requeue(job, ACT, even_if_stale=True)
    leased = await lease(store)
    assert await store.settle_error(leased.token, job, Reschedule(0.0, "again"), 0.1)
    leased = await lease(store)
    assert leased.jobs[0].even_if_stale
    assert await store.settle_done(leased.token, job)
    assert not raw_db.value("SELECT even_if_stale FROM onceward.jobs")


async def test_a_later_requeue_without_the_word_takes_it_back(store: Store) -> None:
    job = (await failed_job(store)).id
    await store.requeue(job, ACT, even_if_stale=True)
    leased = await lease(store)
    await store.settle_error(leased.token, job, BROKEN, 0.1)
    await store.requeue(job, ACT)
    assert not (await lease(store)).jobs[0].even_if_stale


# What others do to the table.


async def test_a_purge_leaves_the_watermarks(store: Store) -> None:
    token, job = await leased_job(store)
    async with working(store) as work:
        assert await work.unit.settle(token, job.id, versioned(mark(5)).advance_watermark)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    assert (await store.purge(Purgeable.EVENTS, 0, limit=10, before=soon)).rows == 1
    assert await store.watermark("credit", KEY) == mark(5)


async def test_a_watermark_is_not_discarded_silently(store: Store, raw_db: RawDatabase) -> None:
    discard_inserts(raw_db, "watermarks")
    with pytest.raises(StoreBlocked, match="watermarks"):
        await apply(store, mark(5))
    drop_trigger(raw_db, "watermarks")
    await apply(store, mark(5))
    if raw_db.is_sqlite:
        raw_db.rows(
            "CREATE TRIGGER altering BEFORE UPDATE ON onceward.watermarks "
            "BEGIN SELECT RAISE(IGNORE); END"
        )
    else:
        add_trigger(raw_db, "watermarks", "RETURN OLD;", "UPDATE")
    with pytest.raises(StoreBlocked, match="watermarks"):
        await apply(store, mark(6))
    assert await store.watermark("credit", KEY) == mark(5)


async def test_a_handler_that_ended_its_transaction_leaves_no_watermark(postgres_url: str) -> None:
    async with opened(postgres_url) as store, store.begin(str) as transaction:
        await transaction.run(parse("SELECT 1")[0], {})
        await transaction._connection.execute("ROLLBACK")  # type: ignore[attr-defined]
        with pytest.raises(TransactionMisuse, match="ended its own transaction"):
            await versioned(mark(5)).advance_watermark(transaction)
        assert await store.watermark("credit", KEY) is None
