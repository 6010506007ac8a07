"""The times of the queue: recovery from a kill, claims beside an old snapshot, and shares."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from prove.fleet import FleetSize
from prove.queueing.events import Handler, events_of, take
from prove.queueing.markers import CLAIM, END, START
from prove.queueing.trial import QueueTrial
from prove.workbench import Workbench
from support.ledger_checker import Violation
from support.processes import ConditionTimeout, eventually

STAGE = "queue times"
FLEET = FleetSize(receivers=1, workers=2)

HELD_JOBS = 16
"""The least number of jobs that run in a worker when it is killed."""

GATED_EVENTS = 44
RECOVERY_LIMIT_SECONDS = 10.0
SETTLED_SECONDS = 20.0

QUICK_PER_SECOND = 50
FAILING_EVENTS = 100
SLOW_PER_SECOND = 50
WAIT_LIMIT_SECONDS = 2.0
DONE_SHARE = 0.9

CHURN_PER_SECOND = 100
CHURN_JOBS = 80_000
CLAIM_FACTOR = 4.0
CLAIM_SLACK_SECONDS = 0.005
"""A claim may take this much longer beside an old snapshot, and `CLAIM_FACTOR` times as long."""

QUICK_JOBS = """
    SELECT e.event_id, EXTRACT(EPOCH FROM e.received_at)::float8, j.status
    FROM onceward.jobs j
    JOIN onceward.events e ON e.id = j.event
    JOIN onceward.handlers h ON h.id = j.handler
    WHERE h.name = 'quick'
"""
CHURN = """
    INSERT INTO onceward.jobs (
        event, received_at, available_at, created_at, handler, attempts, max_attempts, status
    )
    SELECT -n, now(), now(), now(), h.id, 0, 1, 'queued'
    FROM onceward.handlers h, generate_series(1, {jobs}) AS n
    WHERE h.name = 'quick'
"""
SETTLE_CHURN = "UPDATE onceward.jobs SET status = 'done', attempts = 1 WHERE event < 0"


class Pace(NamedTuple):
    """How the jobs of the quick handler fared."""

    sent: int
    done: int
    p99_seconds: float
    per_second: float

    def __str__(self) -> str:
        return f"p99 wait {self.p99_seconds:.2f} s, {self.per_second:.1f} jobs/s"


def measure_times(bench: Workbench) -> None:
    """Measure on one service. The unfair handlers come last: their jobs never end."""
    with (
        bench.stage(STAGE),
        bench.server() as server,
        QueueTrial(server.create(), FLEET, *bench.options, seed=bench.seed) as trial,
    ):
        for number in range(bench.plan.recoveries):
            _recover(bench, trial, number)
        _claim_beside_snapshot(bench, trial)
        _share(bench, trial)
        for log in trial.fleet.unexpected_exits:
            bench.add_finding(STAGE, Violation.PROCESS_EXITED, log)


# Recovery.


def _recover(bench: Workbench, trial: QueueTrial, number: int) -> None:
    """Kill a worker that runs many jobs; time until others have done the last of them."""
    trial.markers.close_gate()
    trial.sender.send_now(take(events_of(Handler.GATED, f"gated-{number}"), GATED_EVENTS))
    slot = eventually(lambda: _busy_slot(trial), f"a worker runs {HELD_JOBS} jobs", SETTLED_SECONDS)
    process = trial.fleet.processes[slot - 1]
    started = time.monotonic()
    trial.note_kill(slot - 1)
    process.kill()
    held = _running(trial)[process.pid]
    trial.markers.open_gate()
    try:
        eventually(lambda: held <= _committed(trial), "the jobs are done", RECOVERY_LIMIT_SECONDS)
        seconds = time.monotonic() - started
        bench.add_delay(
            f"jobs of a killed worker, {HELD_JOBS} or more", seconds, RECOVERY_LIMIT_SECONDS
        )
    except ConditionTimeout as timeout:
        left = len(held - _committed(trial))
        detail = f"{left} of {len(held)} jobs of a killed worker are left: {timeout}"
        bench.add_finding(STAGE, Violation.TOO_SLOW, detail)
    bench.result.tally["jobs taken from killed workers"] += len(held)
    bench.result.tally["recoveries"] += 1
    trial.fleet.kill(slot - 1)


def _busy_slot(trial: QueueTrial) -> int:
    """Return 1 + the slot of a worker that runs enough jobs; 0 if none does."""
    running = _running(trial)
    for slot in trial.fleet.worker_slots:
        if len(running[trial.fleet.processes[slot].pid]) >= HELD_JOBS:
            return slot + 1
    return 0


def _running(trial: QueueTrial) -> dict[int, set[str]]:
    """Return the events whose handlers have started and not ended, by process."""
    counts: Counter[tuple[int, str]] = Counter()
    for marker in trial.markers.read():
        if marker.kind in (START, END) and marker.handler == Handler.GATED:
            counts[marker.pid, marker.event] += 1 if marker.kind == START else -1
    running: dict[int, set[str]] = {process.pid: set() for process in trial.fleet.processes}
    for (pid, event), count in counts.items():
        if count > 0:
            running.setdefault(pid, set()).add(event)
    return running


def _committed(trial: QueueTrial) -> set[str]:
    return {event for (event,) in trial.ledger.rows("SELECT event FROM runs")}


# Claims.


def _claim_beside_snapshot(bench: Workbench, trial: QueueTrial) -> None:
    """Compare the times of claims before and at the end of a long transaction."""
    seconds = bench.plan.snapshot_seconds
    with _quick(trial, CHURN_PER_SECOND, "before"):
        before = _claims_during(trial, max(1.0, seconds / 3))
    with trial.ledger.connection() as pinned, _quick(trial, CHURN_PER_SECOND, "pinned"):
        pinned.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pinned.execute("SELECT count(*) FROM onceward.jobs")
        _churn(trial)
        time.sleep(seconds * 2 / 3)  # how long the jobs come and go
        after = _claims_during(trial, max(1.0, seconds / 3))
    texts = [f"median {_ms(claims, 0.5)}, p99 {_ms(claims, 0.99)} ms" for claims in (before, after)]
    bench.result.notes.append(
        f"claims: {texts[0]}; after {seconds:g} s and {CHURN_JOBS:,} settled jobs beside an old "
        f"snapshot: {texts[1]}"
    )
    bench.result.tally["claims timed beside an old snapshot"] += len(after)
    limit = CLAIM_FACTOR * _quantile(before, 0.5) + CLAIM_SLACK_SECONDS
    if _quantile(after, 0.5) > limit:
        detail = f"claims take {_ms(after, 0.5)} ms, before the snapshot {_ms(before, 0.5)} ms"
        bench.add_finding(STAGE, Violation.TOO_SLOW, detail)


def _churn(trial: QueueTrial) -> None:
    """Queue and settle many jobs at once: a moment leaves as many dead rows as an hour.

    One transaction does both, so that no worker sees a queued job.
    """
    with trial.ledger.connection() as connection:
        connection.execute(CHURN.format(jobs=CHURN_JOBS))
        connection.execute(SETTLE_CHURN)


def _claims_during(trial: QueueTrial, seconds: float) -> list[float]:
    """Return the durations of the claims in the next seconds."""
    since = time.time()
    time.sleep(seconds)  # the workers claim meanwhile
    markers = trial.markers.read()
    claims = [float(each.event) for each in markers if each.kind == CLAIM and each.at >= since]
    return claims or [math.inf]


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _ms(values: list[float], share: float) -> str:
    return f"{_quantile(values, share) * 1000:.1f}"


# Shares.


def _share(bench: Workbench, trial: QueueTrial) -> None:
    """Compare a quick handler alone with the same beside one that fails and one that is slow."""
    seconds = bench.plan.share_seconds
    alone = _pace(trial, "alone", seconds)
    trial.sender.send_now(take(events_of(Handler.FAILING, "failing"), FAILING_EVENTS))
    slow = round(SLOW_PER_SECOND * (seconds + WAIT_LIMIT_SECONDS))
    trial.sender.send_now(take(events_of(Handler.SLOW, "slow"), slow))
    eventually(trial.is_sent, "the unfair events are sent", SETTLED_SECONDS)
    beside = _pace(trial, "beside", seconds)
    bench.result.notes.append(f"quick handler: alone {alone}; beside unfair ones {beside}")
    bench.add_delay("p99 wait beside unfair handlers", beside.p99_seconds, WAIT_LIMIT_SECONDS)
    bench.result.tally["quick jobs beside unfair handlers"] += beside.done
    if beside.p99_seconds > WAIT_LIMIT_SECONDS or beside.done < DONE_SHARE * beside.sent:
        detail = f"{beside.done} of {beside.sent} quick jobs done, {beside}; alone {alone}"
        bench.add_finding(STAGE, Violation.TOO_SLOW, detail)


def _pace(trial: QueueTrial, prefix: str, seconds: float) -> Pace:
    """Send quick events for some time, wait for the last ones, and measure."""
    with _quick(trial, QUICK_PER_SECOND, prefix):
        time.sleep(seconds)  # the workers run jobs meanwhile
    eventually(trial.is_sent, "the quick events are sent", SETTLED_SECONDS)
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    while True:
        jobs = [row for row in trial.ledger.rows(QUICK_JOBS) if row[0].startswith(f"{prefix}-")]
        done = {event: received for event, received, status in jobs if status == "done"}
        if len(done) == len(jobs) or time.monotonic() > deadline:
            break
        time.sleep(0.05)  # the last jobs are about to end
    starts = {each.event: each.at for each in trial.markers.read() if each.kind == START}
    waits = [max(0.0, starts[event] - received) for event, received in done.items()]
    waits += [math.inf] * (len(jobs) - len(done))
    begun = sorted(starts[event] for event in done) or [0.0]
    spent = max(begun[-1] - begun[0], seconds)
    return Pace(len(jobs), len(done), _quantile(waits, 0.99), len(done) / spent)


@contextmanager
def _quick(trial: QueueTrial, rate: float, prefix: str) -> Iterator[None]:
    """Send events of the quick handler meanwhile."""
    trial.sender.send_at(rate, events_of(Handler.QUICK, prefix))
    try:
        yield
    finally:
        trial.sender.pause()
