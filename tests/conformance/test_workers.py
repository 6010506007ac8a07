"""Workers leave a heartbeat, by which every process knows that they are alive."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from onceward.model.admin import PageQuery
from onceward.model.workers import HEALTHY, HEARTBEAT_SECONDS, WorkerHealth
from onceward.operate.worker_watch import WorkerWatch
from onceward.ports import Store
from onceward.runtime.clock import SystemClock
from onceward.work.claiming import heartbeat
from onceward.work.claiming.heartbeat import Heartbeat
from support.database import RawDatabase
from support.postgres import Cluster
from support.processes import eventually_async
from tests.factories import HANDLERS, SOURCES, arrival, opened, record


@pytest.fixture
def fast_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.02)


async def live_names(store: Store) -> list[str]:
    return [worker.name for worker in await store.live_workers()]


def age_heartbeats(raw_db: RawDatabase) -> None:
    raw_db.rows(f"UPDATE onceward.workers SET seen_at = {raw_db.past}")  # noqa: S608 - no outside data


def shift_heartbeats(raw_db: RawDatabase, seconds: float) -> None:
    by = int(seconds * 1_000_000) if raw_db.is_sqlite else f"interval '{seconds} seconds'"
    raw_db.rows(f"UPDATE onceward.workers SET seen_at = seen_at + {by}")  # noqa: S608 - no outside data


@asynccontextmanager
async def beating(store: Store, worker: str = "w") -> AsyncIterator[Heartbeat]:
    beat = Heartbeat(store, worker=worker, handlers=["credit"])
    task = asyncio.create_task(beat.run())
    yield beat
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def make_watch(store: Store, *routed: str) -> WorkerWatch:
    watch = WorkerWatch(store, SystemClock(), advice="Run one", database_text="It is x")
    watch.routed = frozenset(routed)
    return watch


async def test_a_renewed_worker_is_alive_with_its_handlers(store: Store) -> None:
    await store.renew_worker("b", ["notify", "credit"], is_start=True)
    await store.renew_worker("a", [], is_start=True)
    first, second = await store.live_workers()
    assert (first.name, first.handlers) == ("a", frozenset())
    assert (second.name, second.handlers) == ("b", frozenset({"credit", "notify"}))
    assert second.started_at <= second.seen_at


async def test_a_renewal_keeps_the_start_and_a_restart_does_not(store: Store) -> None:
    await store.renew_worker("w", ["credit"], is_start=True)
    (started,) = await store.live_workers()
    await store.renew_worker("w", ["notify"], is_start=False)
    (renewed,) = await store.live_workers()
    assert (renewed.started_at, renewed.handlers) == (started.started_at, frozenset({"notify"}))
    assert renewed.seen_at > started.seen_at
    await store.renew_worker("w", ["notify"], is_start=True)
    (restarted,) = await store.live_workers()
    assert restarted.started_at > started.started_at


async def test_a_handler_with_a_queued_job_is_found(store: Store, raw_db: RawDatabase) -> None:
    await record(store, arrival())
    (job,) = await store.jobs(PageQuery(limit=1))
    assert await store.queued_handlers(["credit", "notify", "unknown"]) == {job.handler}
    raw_db.rows("UPDATE onceward.jobs SET parked = true")
    assert await store.queued_handlers([job.handler]) == {job.handler}
    assert await store.queued_handlers(["notify"]) == frozenset()
    raw_db.rows("UPDATE onceward.jobs SET status = 'done', finished_at = available_at")
    assert await store.queued_handlers([job.handler]) == frozenset()


async def test_a_renewal_stores_the_health(store: Store) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    ill = WorkerHealth({"credit": at}, claims_failed_since=at, claim_error="'no' \"privilege\"")
    for health in (ill, HEALTHY):
        await store.renew_worker("w", ["credit"], health, is_start=False)
        (found,) = await store.live_workers()
        assert found.health == health


async def test_a_worker_of_the_previous_version_is_healthy(
    store: Store, raw_db: RawDatabase
) -> None:
    now = "(SELECT unixepoch() * 1000000)" if raw_db.is_sqlite else "now()"
    raw_db.rows(
        "INSERT INTO onceward.workers (name, handlers, started_at, seen_at) "  # noqa: S608
        f"VALUES ('old', '[\"credit\"]', {now}, {now})"
    )
    (found,) = await store.live_workers()
    assert (found.name, found.health) == ("old", HEALTHY)


async def test_a_worker_whose_health_cannot_be_read_is_alive(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for health in ("{bad", "null", '{"paused": 1}', '{"added_later": 1}'):
        with subtests.test(health):
            await store.renew_worker("w", ["credit"], is_start=True)
            raw_db.rows(f"UPDATE onceward.workers SET health = '{health}'")  # noqa: S608 - no outside data
            (found,) = await store.live_workers()
            assert found.health == HEALTHY


async def test_a_worker_that_stops_is_removed(store: Store) -> None:
    await store.renew_worker("stopped", ["credit"], is_start=True)
    await store.renew_worker("running", ["credit"], is_start=True)
    await store.remove_worker("stopped")
    assert await live_names(store) == ["running"]


async def test_a_worker_without_a_recent_heartbeat_is_dead_and_purged(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.renew_worker("dead", ["credit"], is_start=True)
    age_heartbeats(raw_db)
    await store.renew_worker("alive", ["credit"], is_start=True)
    assert await live_names(store) == ["alive"]
    assert raw_db.count("onceward.workers") == 2
    await store.register(SOURCES, HANDLERS, [])
    assert raw_db.count("onceward.workers") == 1
    await store.renew_worker("dead", ["credit"], is_start=False)
    assert await live_names(store) == ["alive", "dead"]


async def test_a_worker_may_miss_a_heartbeat_and_keeps_its_row_for_a_while(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for intervals, alive in ((-5, []), (-2, ["w"]), (2, ["w"]), (5, [])):
        with subtests.test(f"{intervals} intervals"):
            await store.renew_worker("w", ["credit"], is_start=True)
            shift_heartbeats(raw_db, intervals * HEARTBEAT_SECONDS)
            await store.register(SOURCES, HANDLERS, [])
            assert raw_db.count("onceward.workers") == 1
            assert await live_names(store) == alive


async def test_a_worker_whose_row_cannot_be_read_is_skipped(
    store: Store, raw_db: RawDatabase, subtests: pytest.Subtests
) -> None:
    for handlers in ("{bad", "null", "5", '{"a": 1}', "[[1]]"):
        with subtests.test(handlers):
            await store.renew_worker("odd", ["credit"], is_start=True)
            raw_db.rows(f"UPDATE onceward.workers SET handlers = '{handlers}'")  # noqa: S608 - no outside data
            await store.renew_worker("alive", ["credit"], is_start=True)
            assert await live_names(store) == ["alive"]


async def test_a_worker_seen_in_the_future_is_not_alive_and_is_purged(
    store: Store, raw_db: RawDatabase
) -> None:
    await store.renew_worker("ahead", ["credit"], is_start=True)
    future = 2**52 if raw_db.is_sqlite else "timestamptz '2101-01-01'"
    raw_db.rows(f"UPDATE onceward.workers SET seen_at = {future}")  # noqa: S608 - no outside data
    assert await live_names(store) == []
    await store.register(SOURCES, HANDLERS, [])
    assert raw_db.count("onceward.workers") == 0


@pytest.mark.usefixtures("fast_heartbeat")
async def test_a_heartbeat_is_renewed_until_it_ends(store: Store, raw_db: RawDatabase) -> None:
    async with beating(store) as beat:
        await eventually_async(store.live_workers, "the worker is alive")
        age_heartbeats(raw_db)
        await eventually_async(store.live_workers, "the heartbeat is renewed")
    await beat.end()
    assert raw_db.count("onceward.workers") == 0


@pytest.mark.usefixtures("fast_heartbeat")
async def test_a_heartbeat_survives_an_outage(postgres_cluster: Cluster, postgres_url: str) -> None:
    async with opened(postgres_url) as store, beating(store) as beat:
        await eventually_async(store.live_workers, "the worker is alive")
        postgres_cluster.crash()
        await asyncio.sleep(0.1)  # so that heartbeats fail
        await beat.end()  # raises nothing
        postgres_cluster.start()
        raw_db = RawDatabase(postgres_url)
        age_heartbeats(raw_db)
        fresh = f"SELECT count(*) FROM onceward.workers WHERE seen_at > {raw_db.past}"  # noqa: S608

        async def is_renewed() -> bool:
            return bool(raw_db.value(fresh))

        await eventually_async(is_renewed, "the heartbeat is renewed after the outage")


async def test_a_watch_warns_while_no_worker_is_alive(
    store: Store, raw_db: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onceward.workers")
    watch = make_watch(store, "credit", "notify")
    await watch.refresh()
    (warning,) = watch.warnings
    assert warning.startswith("No worker has been seen since this process started: ")
    assert warning.endswith("events are recorded, and their jobs wait. Run one.")
    assert "(credit, notify). Run one. It is x." in caplog.text
    await watch.refresh()
    assert [*watch.warnings] == [warning]
    assert len(caplog.records) == 1  # it is logged when it begins, not again
    await store.renew_worker("w", ["credit", "notify"], is_start=True)
    await watch.refresh()
    assert not watch.warnings
    assert caplog.messages[1:] == ["Every handler has a running worker."]
    age_heartbeats(raw_db)
    await watch.refresh()
    assert len(watch.warnings) == 1


async def test_a_watch_warns_of_handlers_that_no_worker_runs(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = make_watch(store, "credit", "notify")
    await store.renew_worker("w", ["credit"], is_start=True)
    await watch.refresh()
    (warning,) = watch.warnings
    assert warning.endswith("that runs some of the handlers; the log names them.")
    assert "notify" not in warning  # anyone can read it
    assert "wait: notify." in caplog.text


async def test_a_watch_counts_the_handlers_of_all_workers(store: Store) -> None:
    watch = make_watch(store, "credit", "notify")
    await store.renew_worker("a", ["credit"], is_start=True)
    await store.renew_worker("b", ["notify"], is_start=True)
    await watch.refresh()
    assert watch.warnings == ()


async def test_a_watch_reports_when_other_handlers_lose_their_worker(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = make_watch(store, "credit", "notify")
    for running, waiting in (("credit", "notify"), ("notify", "credit")):
        await store.renew_worker("w", [running], is_start=True)
        await watch.refresh()
        entry = caplog.records[-1]
        assert f"wait: {waiting}." in entry.getMessage()
        assert entry.__dict__["count"] == 1
    assert len(caplog.records) == 2


async def test_a_watch_beside_its_own_worker_reports_the_handlers_of_others(store: Store) -> None:
    watch = make_watch(store, "credit", "notify")
    watch.own_handlers = frozenset({"credit"})
    await watch.refresh()
    (warning,) = watch.warnings
    assert "some of the handlers" in warning


async def test_a_watch_counts_the_worker_of_its_own_process(store: Store) -> None:
    watch = make_watch(store, "credit")
    watch.own_handlers = frozenset({"credit"})
    await watch.refresh()
    assert watch.warnings == ()


async def test_a_watch_warns_once_while_no_process_has_handlers(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    watch = make_watch(store)
    for _ in range(2):
        await watch.refresh()
    (warning,) = watch.warnings
    assert warning == (
        "This inbox has no handlers, and no worker has registered any: every event ends "
        "ignored, or waits for review. Import the modules that define them in the module that "
        "mounts the inbox, or "
        "below the line that creates it."
    )
    assert caplog.messages == [warning]
    watch.routed = frozenset({"credit"})  # a worker has registered it
    await store.renew_worker("w", ["credit"], is_start=True)
    await watch.refresh()
    assert watch.warnings == ()


async def test_after_an_outage_a_watch_waits_for_the_next_heartbeat(
    postgres_cluster: Cluster, postgres_url: str
) -> None:
    async with opened(postgres_url) as store:
        watch = make_watch(store, "credit")
        await store.renew_worker("w", ["credit"], is_start=True)
        await watch.refresh()
        postgres_cluster.crash()
        await watch.refresh()  # raises nothing
        postgres_cluster.start()
        age_heartbeats(RawDatabase(postgres_url))
        await eventually_async(lambda: reads(store), "the database can be read")
        await watch.refresh()
        assert watch.warnings == ()
        await watch.refresh()
        assert len(watch.warnings) == 1


async def reads(store: Store) -> bool:
    await store.live_workers()
    return True
