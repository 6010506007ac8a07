"""The watch for workers, beside a registry that fails."""

import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import pytest

from onceward.errors import StoreUnavailable
from onceward.model.workers import HEALTHY, LiveWorker, WorkerHealth
from onceward.operate.worker_watch import WorkerWatch
from onceward.runtime.clock import SystemClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKER = LiveWorker("w", frozenset({"credit"}), started_at=NOW, seen_at=NOW)


class Registry:
    """A registry that returns or raises what the test says, one read after the other."""

    def __init__(self, *reads: list[LiveWorker] | Exception) -> None:
        self.reads = list(reads)
        self.queued: set[str] = set()

    async def live_workers(self) -> list[LiveWorker]:
        read = self.reads.pop(0)
        if isinstance(read, Exception):
            raise read
        return read

    async def queued_handlers(self, names: Collection[str]) -> frozenset[str]:
        return frozenset(self.queued) & frozenset(names)

    async def renew_worker(
        self,
        worker: str,
        handlers: Sequence[str],
        health: WorkerHealth = HEALTHY,
        *,
        is_start: bool,
    ) -> None:
        raise NotImplementedError

    async def remove_worker(self, worker: str) -> None:
        raise NotImplementedError


async def warned(*reads: list[LiveWorker] | Exception) -> list[bool]:
    """Return whether the watch warned after each read."""
    watch = WorkerWatch(Registry(*reads), SystemClock(), advice="Run one", database_text="")
    watch.routed = frozenset({"credit"})
    after: list[bool] = []
    for _ in reads:
        await watch.refresh()
        after.append(bool(watch.warnings))
    return after


async def test_only_the_first_read_after_an_outage_waits_for_the_next_heartbeat() -> None:
    outage = StoreUnavailable("down")
    assert await warned([WORKER], outage, [], []) == [False, False, False, True]
    assert await warned([WORKER], outage, [WORKER], []) == [False, False, False, True]


async def test_an_inline_handler_needs_a_worker_only_for_a_queued_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = Registry([], [], [WORKER], [])
    watch = WorkerWatch(registry, SystemClock(), advice="Run one", database_text="It is x")
    watch.routed = watch.inline_handlers = frozenset({"credit"})
    await watch.refresh()
    assert not watch.warnings
    registry.queued.add("credit")
    await watch.refresh()
    text = "Jobs are queued for handlers of inline sources, and no worker runs these handlers"
    effect = "the next deliveries of their events do not run the jobs, they get 202"
    assert watch.warnings == (f"{text}: {effect}. The log names the handlers. Run one.",)
    assert caplog.messages == [f"{text} (credit): {effect}. Run one. It is x."]
    await watch.refresh()
    assert not watch.warnings


async def test_a_warning_lasts_through_an_outage() -> None:
    assert await warned([], StoreUnavailable("down"), [], []) == [True, True, True, True]
    assert await warned([], StoreUnavailable("down"), [WORKER]) == [True, True, False]


def worker(name: str = "host:1", health: WorkerHealth = HEALTHY) -> LiveWorker:
    return LiveWorker(name, frozenset({"credit"}), started_at=NOW, seen_at=NOW, health=health)


def make_watch(*reads: list[LiveWorker] | Exception) -> WorkerWatch:
    watch = WorkerWatch(Registry(*reads), SystemClock(), advice="Run one", database_text="")
    watch.routed = frozenset({"credit"})
    return watch


PAUSED = WorkerHealth(paused={"credit": NOW})
PAUSED_TEXT = (
    "Handler 'credit' is paused in worker host:1 (since 2026-01-01 00:00:00 UTC): its timed-out "
    "calls still run, and it starts no jobs there. The log of that worker says what to do."
)
PAUSED_PUBLIC = (
    "A handler is paused in a worker (since 2026-01-01 00:00:00 UTC): its timed-out calls still "
    "run, and it starts no jobs there. The log names both."
)
STUCK = WorkerHealth(claims_failed_since=NOW, claim_error="permission denied for table jobs")
STUCK_TEXT = (
    "Worker host:1 has claimed no job since 2026-01-01 00:00:00 UTC: permission denied for table "
    "jobs."
)
STUCK_PUBLIC = (
    "A worker has claimed no job since 2026-01-01 00:00:00 UTC: permission denied for table jobs. "
    "The log names the worker."
)


@pytest.mark.parametrize(
    ("health", "texts", "ends"),
    [
        (
            PAUSED,
            (PAUSED_TEXT, PAUSED_PUBLIC),
            (
                "Handler 'credit' is no longer paused in worker host:1.",
                "Handler 'credit' is no longer paused in worker host:1, which has stopped.",
            ),
        ),
        (
            STUCK,
            (STUCK_TEXT, STUCK_PUBLIC),
            (
                "Worker host:1 claims jobs again.",
                "Worker host:1, which could claim no jobs, has stopped.",
            ),
        ),
    ],
)
async def test_a_problem_of_another_worker_is_a_warning_until_it_ends(
    health: WorkerHealth,
    texts: tuple[str, str],
    ends: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (text, public_text), (end, end_of_stopped) = texts, ends
    caplog.set_level(logging.INFO)
    down = StoreUnavailable("down")
    ill, well, other = worker(health=health), worker(), worker("host:2")
    watch = make_watch([ill], [ill], down, [ill], [well], [ill, other], [other])
    for _ in range(4):
        await watch.refresh()
        assert watch.warnings == (public_text,)
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [("WARNING", text)]
    assert vars(caplog.records[0])["worker"] == "host:1"
    await watch.refresh()
    assert watch.warnings == ()
    assert (caplog.records[-1].levelname, caplog.messages[-1]) == ("INFO", end)
    for _ in range(2):
        await watch.refresh()
    assert caplog.messages[-1] == end_of_stopped
    assert watch.warnings == ()


async def test_a_worker_may_have_both_problems(caplog: pytest.LogCaptureFixture) -> None:
    both = WorkerHealth(PAUSED.paused, STUCK.claims_failed_since, STUCK.claim_error)
    watch = make_watch([worker(health=both)])
    await watch.refresh()
    assert watch.warnings == (STUCK_PUBLIC, PAUSED_PUBLIC)
    assert [vars(line).get("handler") for line in caplog.records] == [None, "credit"]


async def test_the_own_worker_is_reported_at_once_and_logs_its_problems_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = make_watch([worker(health=PAUSED)])
    watch.own_name, watch.own_health = "host:1", lambda: PAUSED
    assert watch.warnings == (PAUSED_PUBLIC,)
    await watch.refresh()
    assert watch.warnings == (PAUSED_PUBLIC,)
    assert caplog.messages == []


async def test_the_warnings_of_many_workers_are_bounded() -> None:
    watch = make_watch([worker(f"host:{number}", PAUSED) for number in range(23)])
    await watch.refresh()
    assert len(watch.warnings) == 21
    assert watch.warnings[-1] == "3 more warnings of workers are in the log."


async def test_a_handler_without_worker_from_the_start_has_no_invented_time() -> None:
    watch = make_watch([], [worker()], [])
    start = "No worker has been seen since this process started: "
    await watch.refresh()
    assert watch.warnings[0].startswith(start)
    for _ in range(2):
        await watch.refresh()
    assert watch.warnings[0].startswith("No worker has been seen since 2")


async def test_a_worker_with_other_handlers_changes_the_warning() -> None:
    other = LiveWorker("w", frozenset({"credit_v2"}), started_at=NOW, seen_at=NOW)
    watch = make_watch([], [other], [])
    shown = []
    for _ in range(3):
        await watch.refresh()
        shown.append("some of the handlers" in watch.warnings[0])
    assert shown == [False, True, False]
