"""An event that is older than what its key has applied is ignored, in every order of arrival."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from onceward import Event, Inbox, PermanentError, Transaction
from onceward.errors import ConnectionLost
from onceward.model.admin import JobItem, PageQuery
from onceward.model.events import ProcessingState
from onceward.model.jobs import FailureType, Job, JobStatus
from onceward.model.versions import Watermark
from onceward.work.claiming.pace import HandlerPace
from onceward.work.settling.settlement import MAX_FREE_LOSSES
from support.database import RawDatabase
from support.processes import eventually_async
from tests.factories import ACT
from tests.inprocess import RunningInbox, receive_only, run_inbox

UPSERT = (
    "INSERT INTO plans (id, status) VALUES (:id, :status) "
    "ON CONFLICT (id) DO UPDATE SET status = :status"
)
VERSIONS = {"version": "created", "version_key": "id"}
DONE = (JobStatus.DONE, None)
STALE = (JobStatus.IGNORED, FailureType.STALE)
FAILED = (JobStatus.FAILED, FailureType.PERMANENT)
SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"

Before = Callable[[Event[Any], Transaction], Awaitable[None]]


async def go_on(_: Event[Any], __: Transaction) -> None: ...


def plans(before: Before = go_on, **options: Any) -> Inbox:
    """Return an inbox whose handler stores the status of each plan."""
    inbox = Inbox()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS plans (id text PRIMARY KEY, status text)")

    @inbox.on("plan", **{**VERSIONS, **options})
    async def sync(event: Event[Any], tx: Transaction) -> None:
        await before(event, tx)
        plan = event.payload
        await tx.execute(UPSERT, {"id": plan["id"], "status": plan["status"]})

    return inbox


def plan(version: object, status: str, key: object = "p") -> dict[str, object]:
    return {"id": key, "created": version, "status": status}


def statuses(url: str) -> dict[str, str]:
    """Return the status of each plan."""
    return dict(RawDatabase(url).rows("SELECT id, status FROM plans"))


def outcome(item: JobItem) -> tuple[JobStatus, FailureType | None]:
    return item.status, item.failure_type


async def send(
    running: RunningInbox, event_id: str, version: object, status: str, key: str = "p"
) -> JobItem:
    """Send one event, and return its job when it has ended."""
    await running.post("plan", plan(version, status, key), event_id)
    await running.wait_until_idle()
    return await running.job(event_id)


async def test_a_late_event_is_ignored_and_its_handler_does_not_start(database_url: str) -> None:
    started = []

    async def note(event: Event[Any], _: Transaction) -> None:
        started.append(event.id)

    async with run_inbox(plans(note), database_url) as running:
        assert outcome(await send(running, "evt_9", 7, "cancelled")) == DONE
        late = await send(running, "evt_1", 5, "active")
        (event,) = await running.store.events(PageQuery(limit=1, event_id="evt_1"))
    assert outcome(late) == STALE
    assert late.last_error == "stale: version 5 is older than 7, which event evt_9 applied"
    assert (late.attempts, late.finished_at is not None) == (1, True)
    assert event.processing_state is ProcessingState.IGNORED
    assert statuses(database_url) == {"p": "cancelled"}
    assert started == ["evt_9"]


async def test_what_a_handler_wrote_for_an_event_that_became_stale_rolls_back(
    database_url: str,
) -> None:
    reached, newer_is_done = asyncio.Event(), asyncio.Event()

    async def wait(event: Event[Any], tx: Transaction) -> None:
        if event.id == "older":
            reached.set()
            await newer_is_done.wait()
            await tx.execute("INSERT INTO plans (id, status) VALUES ('note', 'of the older')")

    async with run_inbox(plans(wait), database_url, workers=2) as running:
        await running.post("plan", plan(5, "active"), "older")
        await reached.wait()
        await running.post("plan", plan(7, "cancelled"), "newer")

        async def has_ended() -> bool:
            return (await running.job("newer")).finished_at is not None

        await eventually_async(has_ended, "the newer event is applied")
        newer_is_done.set()
        await running.wait_until_idle()
        assert outcome(await running.job("newer")) == DONE
        assert outcome(await running.job("older")) == STALE
    assert statuses(database_url) == {"p": "cancelled"}


async def test_a_handler_without_statements_has_a_watermark(database_url: str) -> None:
    inbox = Inbox()
    handled = []

    @inbox.on("plan", **VERSIONS)  # type: ignore[arg-type]
    async def sync(event: Event[Any]) -> None:
        handled.append(event.id)

    async with run_inbox(inbox, database_url) as running:
        assert outcome(await send(running, "b", 7, "x")) == DONE
        assert outcome(await send(running, "a", 6, "x")) == STALE
        assert await running.store.watermark("sync", "p") == Watermark(Decimal(7), "b", "ingest")
    assert handled == ["b"]


async def test_a_sync_handler_ignores_stale_events_too(database_url: str) -> None:
    inbox = Inbox()

    @inbox.on("plan", **VERSIONS)  # type: ignore[arg-type]
    def sync(event: Event[Any]) -> None: ...

    async with run_inbox(inbox, database_url) as running:
        assert outcome(await send(running, "b", "2026-11-17", "x")) == DONE
        assert outcome(await send(running, "a", "2026-11-16", "x")) == STALE


async def test_a_newer_event_that_was_never_applied_makes_no_older_one_stale(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEWARD_FAILPOINTS", "settle.written:raise:1")
    async with run_inbox(plans(), database_url, max_attempts=1) as running:
        newer = await send(running, "newer", 7, "cancelled")
        assert outcome(newer) == (JobStatus.FAILED, FailureType.EXHAUSTED)
        assert outcome(await send(running, "older", 5, "active")) == DONE
    assert statuses(database_url) == {"p": "active"}


COMPARED: list[tuple[object, object, object]] = [
    (10**18, 10**18 + 1, DONE),
    (2**53 + 1, 2**53, STALE),
    (10**200 + 1, 10**200, STALE),
    (9, 10, DONE),
    ("9", "10", STALE),
    (1.5, 1, STALE),
    (1, 1.0000000001, DONE),
    (5, 5.0, DONE),  # the same version, and a higher id
    (5, "6", FAILED),
    ("5", 6, FAILED),
    (5, None, FAILED),
    (5, True, FAILED),
    (5, [6], FAILED),
]


async def test_versions_compare_as_what_they_are(
    database_url: str, subtests: pytest.Subtests
) -> None:
    async with run_inbox(plans(), database_url) as running:
        for number, (first, second, status) in enumerate(COMPARED):
            key = f"p{number}"
            with subtests.test(f"{first!r}, then {second!r}"):
                assert outcome(await send(running, f"{key} a", first, "first", key)) == DONE
                later = await send(running, f"{key} b", second, "second", key)
                assert outcome(later) == status
                assert statuses(database_url)[key] == ("second" if status == DONE else "first")
                if status == FAILED:
                    assert later.last_error is not None
                    assert later.last_error.startswith("version created is ")


async def test_a_missing_key_fails_the_job_with_the_path(database_url: str) -> None:
    async with run_inbox(plans(), database_url) as running:
        await running.post("plan", {"created": 5}, "a")
        await running.wait_until_idle()
        failed = await running.job("a")
    assert outcome(failed) == FAILED
    assert failed.last_error is not None
    assert failed.last_error.startswith("version_key id is missing or null in the payload; ")


async def test_a_large_body_has_a_version(database_url: str) -> None:
    async with run_inbox(plans(), database_url) as running:
        for event_id, version, status in (("b", 7, "new"), ("a", 6, "old")):
            payload = plan(version, status) | {"more": "x" * 100_000}
            await running.post("plan", payload, event_id)
            await running.wait_until_idle()
        assert outcome(await running.job("a")) == STALE
    assert statuses(database_url) == {"p": "new"}


async def test_a_large_body_is_loaded_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_inbox(plans(), database_url) as running:
        loaded = []
        load_body = running.store.load_body

        async def note(job: Job) -> bytes:
            loaded.append(job.event_id)
            return await load_body(job)

        monkeypatch.setattr(running.store, "load_body", note)
        await running.post("plan", plan(7, "new") | {"more": "x" * 100_000}, "a")
        await running.wait_until_idle()
        assert outcome(await running.job("a")) == DONE
    assert loaded == ["a"]


async def test_the_reason_is_logged_and_stored_without_secrets_and_control_characters(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onceward.work")
    inbox = plans()
    inbox.source("stripe", secrets=[SECRET])
    async with run_inbox(inbox, database_url) as running:
        assert outcome(await send(running, "evt\r\n9", f"b {SECRET}", "cancelled")) == DONE
        late = await send(running, "evt_1", "a", "active")
    assert outcome(late) == STALE
    reason = late.last_error
    assert reason is not None
    assert reason.startswith("stale: version a is older than b ")
    assert reason.endswith(", which event evt\\r\\n9 applied")
    assert SECRET[6:] not in reason
    (line,) = [record for record in caplog.records if "ignored" in record.getMessage()]
    assert line.levelname == "INFO"
    assert line.getMessage() == f"job {late.id} of handler 'sync' is ignored: {reason}"


async def test_stale_jobs_are_no_failures_to_the_scheduler(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = []

    def note(_: object, seconds: float, *, failed: bool) -> None:
        failures.append(failed)

    monkeypatch.setattr(HandlerPace, "observe", note)
    async with run_inbox(plans(), database_url) as running:
        assert outcome(await send(running, "b", 7, "new")) == DONE
        assert outcome(await send(running, "a", 5, "old")) == STALE
        assert outcome(await send(running, "c", "text", "new")) == FAILED
    assert failures == [False, False, True]


async def test_lost_connections_before_a_job_was_stale_do_not_count_later(
    database_url: str,
) -> None:
    runs = 0
    newer_is_done = asyncio.Event()

    async def lose_connections(event: Event[Any], _: Transaction) -> None:
        nonlocal runs
        if event.id == "older":
            runs += 1
            if runs == MAX_FREE_LOSSES:
                await newer_is_done.wait()
            if runs <= MAX_FREE_LOSSES + 1:
                raise ConnectionLost("the server went away")

    async with run_inbox(plans(lose_connections), database_url, workers=2) as running:
        await running.post("plan", plan(5, "active"), "older")

        async def waits() -> bool:
            return runs == MAX_FREE_LOSSES

        await eventually_async(waits, "the older event has lost its connection twice")
        await running.post("plan", plan(7, "cancelled"), "newer")

        async def has_ended() -> bool:
            return (await running.job("newer")).finished_at is not None

        await eventually_async(has_ended, "the newer event is applied")
        newer_is_done.set()
        await running.wait_until_idle()
        stale = await running.job("older")
        assert (outcome(stale), stale.attempts) == (STALE, 1)
        await running.store.requeue(int(stale.id), ACT, even_if_stale=True)
        await running.wait_until_idle()
        again = await running.job("older")
    assert (outcome(again), again.attempts) == (DONE, 2)


async def test_a_stale_job_frees_its_ordering_key(database_url: str) -> None:
    inbox = plans(ordering_key="id")
    async with receive_only(inbox, database_url) as running:
        for event_id, version in (("a", 7), ("b", 5), ("c", 9)):
            await running.post("plan", plan(version, event_id), event_id)
    async with run_inbox(inbox, database_url) as running:
        await running.wait_until_idle()
        found = {name: outcome(item) for name, item in (await running.jobs()).items()}
    assert found == {"a/sync": DONE, "b/sync": STALE, "c/sync": DONE}
    assert statuses(database_url) == {"p": "c"}


# Operators.


async def test_a_requeued_stale_job_ends_stale_again_unless_a_person_says_otherwise(
    database_url: str,
) -> None:
    async with run_inbox(plans(), database_url) as running:
        await send(running, "b", 7, "cancelled")
        stale = await send(running, "a", 5, "active")
        assert await running.store.requeue(int(stale.id), ACT) is not None
        await running.wait_until_idle()
        assert outcome(await running.job("a")) == STALE
        assert statuses(database_url) == {"p": "cancelled"}
        await running.store.requeue(int(stale.id), ACT, even_if_stale=True)
        await running.wait_until_idle()
        assert outcome(await running.job("a")) == DONE
        assert statuses(database_url) == {"p": "active"}
        assert await running.store.watermark("sync", "p") == Watermark(Decimal(7), "b", "ingest")
        assert outcome(await send(running, "c", 6, "active")) == STALE
        actions = [entry.action for entry in await running.store.audit(PageQuery(limit=9))]
    assert actions == ["manual_requeue_even_if_stale", "manual_requeue"]


async def test_the_same_event_may_run_again(database_url: str) -> None:
    async with run_inbox(plans(), database_url) as running:
        first = await send(running, "a", 5, "active")
        raw_db = RawDatabase(database_url)
        raw_db.rows("UPDATE plans SET status = 'lost'")
        raw_db.rows(f"UPDATE onceward.jobs SET status = 'failed' WHERE id = {first.id}")  # noqa: S608
        await running.store.requeue(int(first.id), ACT)
        await running.wait_until_idle()
        assert outcome(await running.job("a")) == DONE
    assert statuses(database_url) == {"p": "active"}


# Every order of arrival.


class Arrangement(NamedTuple):
    """The events of one key in their order of arrival, and the one that fails at first."""

    key: str
    events: tuple[tuple[str, int], ...]
    """The id and the version of each."""
    failing: str | None

    @property
    def last(self) -> str:
        """The event that must have been applied last."""
        return max(self.events, key=lambda event: (event[1], event[0]))[0]


VERSIONS_OF_ONE_KEY = {
    "different": {"a": 1, "b": 2, "c": 3},
    "equal": {"a": 5, "b": 5, "c": 5},
    "tied": {"c": 1, "a": 2, "b": 2},
}


def arrangements(name: str, versions: Mapping[str, int]) -> list[Arrangement]:
    """Return every order of some events, with an error in no place and in each."""
    orders = itertools.permutations(versions.items())
    return [
        Arrangement(f"{name} {number}", order, failing)
        for number, (order, failing) in enumerate(itertools.product(orders, [None, *versions]))
    ]


@asynccontextmanager
async def two_workers(inbox: Inbox, url: str) -> AsyncIterator[RunningInbox]:
    async with run_inbox(inbox, url, workers=4) as running:
        second = running.service.worker()
        working = asyncio.create_task(second.run())
        try:
            yield running
        finally:
            second.stop()
            await working


@pytest.mark.parametrize("one_by_one", [True, False], ids=["one by one", "at once"])
async def test_every_order_ends_in_the_same_state(database_url: str, *, one_by_one: bool) -> None:
    failed = set()

    async def fail_once(event: Event[Any], _: Transaction) -> None:
        if event.payload["fails"] and event.id not in failed:
            failed.add(event.id)
            raise ConnectionError("no route")

    cases = [
        case
        for name, versions in VERSIONS_OF_ONE_KEY.items()
        for case in arrangements(name, versions)
    ]
    async with two_workers(plans(fail_once), database_url) as running:
        for place in range(3):
            for case in cases:
                event, version = case.events[place]
                payload = plan(version, event, case.key) | {"fails": event == case.failing}
                await running.post("plan", payload, f"{case.key} {event}")
            if one_by_one:
                await running.wait_until_idle()
        await running.wait_until_idle()
        jobs = await running.jobs()
        marks = [await running.store.watermark("sync", case.key) for case in cases]
    assert statuses(database_url) == {case.key: case.last for case in cases}
    assert [mark.event_id for mark in marks if mark] == [f"{c.key} {c.last}" for c in cases]
    assert {outcome(item) for item in jobs.values()} == {DONE, STALE}
    assert {outcome(jobs[f"{c.key} {c.last}/sync"]) for c in cases} == {DONE}


async def test_a_permanent_error_leaves_the_older_version_in_force(database_url: str) -> None:
    async def refuse(event: Event[Any], _: Transaction) -> None:
        if event.id == "refused":
            raise PermanentError("no such plan")

    async with run_inbox(plans(refuse), database_url) as running:
        await send(running, "a", 5, "active")
        assert outcome(await send(running, "refused", 9, "x")) == FAILED
        assert outcome(await send(running, "b", 7, "cancelled")) == DONE
    assert statuses(database_url) == {"p": "cancelled"}
