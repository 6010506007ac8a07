"""The rules of the queue under load: order, limits, pauses and cancels, with killed workers."""

import time
from collections.abc import Iterator
from itertools import cycle

from prove.fleet import FleetSize
from prove.queueing.checker import PAUSE_LIMIT_SECONDS, QueueChecker
from prove.queueing.events import Handler, Source, events_of, mixed_events, take
from prove.queueing.trial import QueueTrial
from prove.workbench import SQLITE_FLEET, Workbench
from support.ledger_checker import Violation

STAGE = "queue"
FLEET = FleetSize(receivers=2, workers=3)
SERVER = {"max_connections": "300"}
"""On a loaded machine, the connections of killed processes end late."""

EVENTS_PER_SECOND = 120
BURSTS = {Handler.CAPPED: 40, Handler.RATED: 60}
"""Events that are sent at once: a limit shows only if more wait than it allows."""

PAUSE_SECONDS = PAUSE_LIMIT_SECONDS + 1.0
BETWEEN_SECONDS = 1.0
TICK_SECONDS = 0.05
PAUSED_HANDLERS = (Handler.RATED, Handler.HOLD, Handler.NOTED, Handler.CONTINUE, Handler.CAPPED)
PAUSED_SOURCES = (Source.SHOP, Source.INGEST)


def keep_rules(bench: Workbench) -> None:
    """Send events of hot keys and of many, kill workers, pause, cancel and requeue; then check."""
    size = SQLITE_FLEET if bench.is_sqlite else FLEET
    with (
        bench.stage(STAGE),
        bench.server(settings=SERVER) as server,
        QueueTrial(server.create(), size, *bench.options, seed=bench.seed) as trial,
    ):
        _load(bench, trial)
        with bench.timed("queue, drain"):
            waiting = trial.drain()
        for job in waiting:
            bench.add_finding(STAGE, Violation.STALLED, f"job {job}")
        for log in trial.fleet.unexpected_exits:
            bench.add_finding(STAGE, Violation.PROCESS_EXITED, log)
        checker = QueueChecker(trial)
        checker.check()
        bench.add(STAGE, checker.findings)
        bench.result.tally += checker.tally
        bench.result.figures[STAGE] = checker.totals()
        figures = checker.figures
        pause_seconds = figures.last_start_after_pause
        bench.add_delay("last start after a pause", pause_seconds, PAUSE_LIMIT_SECONDS)
        bench.result.notes.append(
            f"queue: {figures.max_concurrency} capped jobs at once; starts beyond the rate: "
            f"{figures.rate_excess:.2f} s of it; {figures.overtaken} jobs overtaken by an event "
            "that was recorded at the same time"
        )


def _load(bench: Workbench, trial: QueueTrial) -> None:
    """Send events and inject the faults of the plan, for as long as it says."""
    plan, fleet = bench.plan, trial.fleet
    progress = bench.progress(STAGE, plan.queue_kills)
    for handler, count in BURSTS.items():
        trial.sender.send_now(take(events_of(handler, f"burst-{handler}"), count))
    trial.sender.send_at(EVENTS_PER_SECOND, mixed_events(bench.rng))
    operator = trial.start_operator()
    pauses = _pauses(trial, count=plan.pauses // 2)
    started, kills = time.monotonic(), 0
    while True:
        elapsed = time.monotonic() - started
        are_pauses_over = next(pauses, True)
        are_kills_over = kills >= plan.queue_kills or elapsed > plan.queue_seconds * bench.overrun
        if are_pauses_over and are_kills_over and elapsed >= plan.queue_seconds:
            break
        if not are_kills_over and elapsed >= (kills + 0.5) * plan.queue_seconds / plan.queue_kills:
            trial.kill(bench.rng.choice(fleet.worker_slots))
            kills += 1
            progress(kills)
        fleet.replace_exited()
        time.sleep(TICK_SECONDS)  # the pace of the faults
    trial.stop_operator(operator)


def _pauses(trial: QueueTrial, *, count: int) -> Iterator[bool]:
    """Pause a handler and a source together, then resume them. Yield False while time passes."""
    handlers, sources = cycle(PAUSED_HANDLERS), cycle(PAUSED_SOURCES)
    for _ in range(count):
        yield from _during(BETWEEN_SECONDS)
        trial.pause("handlers", next(handlers))
        trial.pause("sources", next(sources))
        yield from _during(PAUSE_SECONDS)
        trial.resume()


def _during(seconds: float) -> Iterator[bool]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield False
