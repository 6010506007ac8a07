"""Events whose handlers run within the request: one transaction, and one of all that try."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from onceward.errors import (
    EventBusy,
    EventChanged,
    LeaseLost,
    NotSettled,
)
from onceward.model.admin import JobItem
from onceward.model.events import DuplicateBody, Outcome
from onceward.model.inline import InlineRun, LedgerEvent
from onceward.model.jobs import FailureType, JobStatus
from onceward.ports import InlineTransaction, Store
from onceward.runtime.failpoints import FailpointReached
from onceward.runtime.sql_text import parse
from onceward.store import inline
from support.database import RawDatabase
from tests.factories import (
    ACT,
    BROKEN,
    EVERYTHING,
    arrival,
    checked,
    inline_failure,
    lease,
    opened,
    processing,
    record,
    working,
)

NEW = InlineRun(0, "credit", -7)
INSERT = parse("INSERT INTO accounts (customer) VALUES (:customer)")[0]
ANN, BOB = {"customer": "Ann"}, {"customer": "Bob"}


@pytest.fixture
def accounts(store: Store, raw_db: RawDatabase) -> RawDatabase:
    """Create a table of the app."""
    raw_db.rows("CREATE TABLE accounts (customer text)")
    return raw_db


def customers(raw_db: RawDatabase) -> list[str]:
    """Return what handlers wrote."""
    return [name for (name,) in raw_db.rows("SELECT customer FROM accounts ORDER BY customer")]


async def only_job(store: Store) -> JobItem:
    (item,) = await store.jobs(EVERYTHING)
    return item


async def fail(store: Store, run: InlineRun = NEW) -> InlineRun:
    """Record that the handler of the event failed, and return the run of the next delivery."""
    await store.fail_inline([arrival()], [inline_failure(run)], "host:1")
    return InlineRun(0, "credit", int((await only_job(store)).id))


@asynccontextmanager
async def handled(store: Store) -> AsyncIterator[InlineTransaction]:
    """Process the event up to the end of its handler, which writes a row."""
    async with processing(store, arrival()) as transaction:
        await transaction.run(INSERT, ANN)
        yield transaction


async def test_the_event_the_writes_and_done_commit_together(
    store: Store, accounts: RawDatabase
) -> None:
    async with handled(store) as transaction:
        assert await transaction.mark_effect(NEW.job, "credit:1", None)
        (receipt,) = (await transaction.settle_inline([arrival()], [NEW])).receipts
        assert await store.events(EVERYTHING) == []
        await transaction.commit()
    assert receipt.outcome is Outcome.RECORDED
    assert customers(accounts) == ["Ann"]
    job = await only_job(store)
    assert (job.status, job.attempts, job.failure_type) == (JobStatus.DONE, 1, None)
    assert job.finished_at is not None
    (effect,) = await store.effects(EVERYTHING)
    assert effect.job_id == job.id


async def test_a_crash_before_the_commit_leaves_nothing(
    database_url: str, raw_db: RawDatabase
) -> None:
    async with opened(database_url, failpoints="settle.written:raise:1") as store:
        raw_db.rows("CREATE TABLE accounts (customer text)")
        async with handled(store) as transaction:
            with pytest.raises(FailpointReached):
                await transaction.settle_inline([arrival()], [NEW])
        assert customers(raw_db) == []
        assert await store.events(EVERYTHING) == []


async def test_the_ledger_is_read_under_the_lock(store: Store, accounts: RawDatabase) -> None:
    async with store.lock_events([arrival()]) as events:
        assert events.view.events == [None]
    await fail(store)
    async with store.lock_events([arrival(), arrival("evt_2")]) as events:
        recorded, other = events.view.events
    assert other is None
    assert isinstance(recorded, LedgerEvent)
    (job,) = recorded.jobs
    assert (job.handler, job.status, job.attempts) == ("credit", JobStatus.FAILED, 1)
    assert job.has_failed_inline


async def test_a_body_that_will_be_held_is_seen_before_its_handlers_run(store: Store) -> None:
    hold = DuplicateBody.HELD
    await record(store, checked("evt_1", hold))
    async with store.lock_events([checked("evt_2", hold)]) as events:
        assert events.view.held == {0}


async def test_only_the_content_that_is_covered_decides_whether_a_body_is_held(
    store: Store,
) -> None:
    hold = DuplicateBody.HELD
    await record(store, checked("evt_1", hold, covered=b"order", body=b"first"))
    same = checked("evt_2", hold, covered=b"order", body=b"second")
    other = checked("evt_3", hold, covered=b"another", body=b"first")
    elsewhere = checked("evt_2", hold, covered=b"order", source="ingest")
    allowed = checked("evt_4", DuplicateBody.ALLOWED, covered=b"order")
    async with store.lock_events([same, other, elsewhere, allowed]) as events:
        assert events.view.held == {0}


async def test_an_event_of_another_source_is_not_this_one(store: Store) -> None:
    await record(store, arrival(source="ingest"))
    async with store.lock_events([arrival(), arrival(source="ingest")]) as events:
        new, recorded = events.view.events
    assert new is None
    assert recorded is not None


async def test_an_event_with_the_same_id_of_another_source_is_not_busy(postgres_url: str) -> None:
    async with (
        opened(postgres_url) as first,
        opened(postgres_url) as second,
        first.lock_events([arrival()]),
        second.lock_events([arrival(source="ingest")]) as events,
    ):
        assert events.view.events == [None]


async def test_an_event_that_another_process_has_is_busy(postgres_url: str) -> None:
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        async with processing(first, arrival(), arrival("evt_2")) as transaction:
            with pytest.raises(EventBusy):
                async with second.lock_events([arrival("evt_2")]):
                    pass
            async with second.lock_events([arrival("evt_3")]):
                pass
            runs = [NEW, InlineRun(1, "credit", -8)]
            await transaction.settle_inline([arrival(), arrival("evt_2")], runs)
            await transaction.commit()
        async with second.lock_events([arrival("evt_2")]) as events:
            (event,) = events.view.events
            assert event is not None
            assert [job.status for job in event.jobs] == [JobStatus.DONE]


async def test_recording_the_same_event_does_not_wait_for_its_handlers(
    store: Store, accounts: RawDatabase
) -> None:
    if accounts.is_sqlite:
        pytest.skip("the only writer of SQLite has the transaction")
    async with handled(store) as transaction:
        (receipt,) = await record(store, arrival())  # as a process without the inline mode does
        assert receipt.outcome is Outcome.RECORDED
        with pytest.raises(EventChanged):
            await transaction.settle_inline([arrival()], [NEW])
    assert customers(accounts) == []
    assert (await only_job(store)).status is JobStatus.QUEUED


async def test_a_redelivery_after_a_failure_succeeds(store: Store, accounts: RawDatabase) -> None:
    again = await fail(store)
    async with handled(store) as transaction:
        (receipt,) = (await transaction.settle_inline([arrival()], [again])).receipts
        await transaction.commit()
    assert receipt.outcome is Outcome.DUPLICATE
    job = await only_job(store)
    assert (job.status, job.attempts, job.last_error) == (JobStatus.DONE, 2, None)
    assert job.failure_type is None
    assert customers(accounts) == ["Ann"]


async def test_a_failure_that_is_recorded_late_does_not_undo_done(
    store: Store, accounts: RawDatabase
) -> None:
    async with handled(store):
        pass  # rolled back; the failure is not recorded yet
    async with handled(store) as transaction:
        await transaction.settle_inline([arrival()], [NEW])
        await transaction.commit()
    assert await store.fail_inline([arrival()], [inline_failure(NEW)], "host:1") == {}
    job = await only_job(store)
    assert (job.status, job.attempts, job.last_error) == (JobStatus.DONE, 1, None)
    (event,) = await store.events(EVERYTHING)
    assert event.deliveries == 2


async def test_failures_are_counted_and_the_newest_are_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "KEPT_ATTEMPTS", 2)
    run = NEW
    for _ in range(4):
        run = await fail(store, run)
    detail = await store.job(run.job, attempts=10)
    assert detail is not None
    assert (detail.status, detail.failure_type) == (JobStatus.FAILED, FailureType.INLINE)
    assert (detail.attempts, detail.last_error) == (4, "no such account")
    assert [attempt.number for attempt in detail.failed_attempts] == [4, 3]
    assert {attempt.worker for attempt in detail.failed_attempts} == {"host:1"}
    elapsed = [attempt.ended_at - attempt.started_at for attempt in detail.failed_attempts]
    assert [round(each.total_seconds(), 2) for each in elapsed] == [0.1, 0.1]
    assert detail.finished_at is not None


async def test_a_job_that_was_requeued_meanwhile_is_left_to_the_worker(
    store: Store, accounts: RawDatabase
) -> None:
    again = await fail(store)
    assert await store.requeue(again.job, ACT)
    async with handled(store) as transaction:
        with pytest.raises(EventChanged):
            await transaction.settle_inline([arrival()], [again])
    leased = await lease(store)
    async with working(store) as work:
        await work.tx.execute(INSERT.text, BOB)
        assert await work.unit.settle(leased.token, again.job)
    assert customers(accounts) == ["Bob"]


async def test_a_job_that_a_worker_finished_meanwhile_is_not_done_twice(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE accounts (customer text)")
    async with opened(postgres_url) as store:
        again = await fail(store)
        async with handled(store) as transaction:
            assert await store.requeue(again.job, ACT)
            leased = await lease(store)
            async with working(store) as work:
                await work.tx.execute(INSERT.text, BOB)
                assert await work.unit.settle(leased.token, again.job)
            with pytest.raises(EventChanged):
                await transaction.settle_inline([arrival()], [again])
        assert customers(raw_db) == ["Bob"]


async def test_a_job_that_was_done_within_a_request_is_lost_to_its_worker(
    postgres_url: str,
) -> None:
    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE accounts (customer text)")
    async with opened(postgres_url) as store:
        again = await fail(store)
        async with handled(store) as transaction:
            await transaction.settle_inline([arrival()], [again])
            await transaction.commit()
        assert await store.requeue(again.job, ACT) is None
        raw_db.add_lease([again.job])
        async with working(store) as work:
            await work.tx.execute(INSERT.text, BOB)
            token = raw_db.value("SELECT token FROM onceward.leases")
            with pytest.raises(LeaseLost):
                await work.unit.settle(token, again.job)
        assert customers(raw_db) == ["Ann"]


async def test_a_job_that_was_cancelled_meanwhile_is_not_done(
    store: Store, accounts: RawDatabase
) -> None:
    again = await fail(store)
    assert await store.cancel(again.job, ACT)
    async with handled(store) as transaction:
        with pytest.raises(EventChanged):
            await transaction.settle_inline([arrival()], [again])
    assert customers(accounts) == []
    assert (await only_job(store)).status is JobStatus.CANCELLED


async def test_a_failure_does_not_touch_a_job_that_was_requeued(store: Store) -> None:
    again = await fail(store)
    assert await store.requeue(again.job, ACT)
    assert await store.fail_inline([arrival()], [inline_failure(again)], "host:1") == {}
    job = await only_job(store)
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 1)


async def test_a_job_that_failed_in_a_worker_meanwhile_is_left_to_the_operator(
    store: Store, accounts: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "KEPT_ATTEMPTS", 1)
    again = await fail(store)
    assert await store.requeue(again.job, ACT)
    leased = await lease(store)
    assert await store.settle_error(leased.token, again.job, BROKEN, 0.1)
    async with handled(store) as transaction:
        with pytest.raises(EventChanged):
            await transaction.settle_inline([arrival()], [again])
    assert await store.fail_inline([arrival()], [inline_failure(again)], "host:1") == {}
    assert customers(accounts) == []
    detail = await store.job(again.job, attempts=10)
    assert detail is not None
    assert (detail.failure_type, detail.attempts) == (FailureType.PERMANENT, 2)
    assert len(detail.failed_attempts) == 2


async def test_an_event_that_is_held_meanwhile_is_not_done(
    store: Store, accounts: RawDatabase
) -> None:
    hold = DuplicateBody.HELD
    await record(store, checked("evt_1", hold))
    delivery = checked("evt_2", hold)
    async with processing(store, delivery) as transaction:
        await transaction.run(INSERT, ANN)
        with pytest.raises(EventChanged):
            await transaction.settle_inline([delivery], [NEW])
    assert customers(accounts) == []


async def test_a_failure_does_not_touch_a_job_that_is_held(store: Store) -> None:
    hold = DuplicateBody.HELD
    await record(store, checked("evt_1", hold))
    failure = inline_failure(NEW)
    assert await store.fail_inline([checked("evt_2", hold)], [failure], "host:1") == {}
    (held,) = [job for job in await store.jobs(EVERYTHING) if job.status is JobStatus.FAILED]
    assert (held.failure_type, held.attempts) == (FailureType.HELD, 0)


async def test_a_failure_of_a_retired_handler_is_recorded_without_a_job(store: Store) -> None:
    failure = inline_failure(InlineRun(0, "retired", -7))
    assert await store.fail_inline([arrival()], [failure], "host:1") == {}
    assert len(await store.events(EVERYTHING)) == 1


async def test_a_handler_that_another_process_retired_is_not_done(
    store: Store, accounts: RawDatabase
) -> None:
    async with handled(store) as transaction:
        with pytest.raises(NotSettled, match="another process retired the handler"):
            await transaction.settle_inline([arrival()], [InlineRun(0, "retired", -7)])
    assert customers(accounts) == []
    assert await store.events(EVERYTHING) == []


async def test_handlers_of_other_processes_get_a_background_job(store: Store) -> None:
    delivery = arrival(type="order.paid")
    async with processing(store, delivery) as transaction:
        await transaction.settle_inline([delivery], [])
        await transaction.commit()
    job = await only_job(store)
    assert (job.handler, job.status) == ("notify", JobStatus.QUEUED)
    assert (await lease(store, handlers=["notify"])).jobs


async def test_the_deferred_constraints_of_the_app_see_its_search_path(postgres_url: str) -> None:
    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE accounts (customer text)")
    raw_db.rows("CREATE TABLE audit_of_app (customer text)")
    raw_db.rows(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO audit_of_app VALUES (NEW.customer); RETURN NULL; END'"
    )
    raw_db.rows(
        "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON accounts DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION note()"
    )
    async with opened(postgres_url) as store, handled(store) as transaction:
        await transaction.settle_inline([arrival()], [NEW])
        await transaction.commit()
    assert raw_db.rows("SELECT customer FROM audit_of_app") == [("Ann",)]


async def test_conflicts_that_come_twice_in_one_request_are_recorded(store: Store) -> None:
    await record(store, arrival())
    new, other = arrival("evt_2"), arrival(body=b"other")
    deliveries = [new, other, other]
    async with processing(store, *deliveries) as transaction:
        receipts = (await transaction.settle_inline(deliveries, [NEW])).receipts
        await transaction.commit()
    conflict = Outcome.CONFLICT
    assert [receipt.outcome for receipt in receipts] == [Outcome.RECORDED, conflict, conflict]
