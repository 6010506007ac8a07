"""Faults of processes: kills, suspensions, and a baseline without any fault."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from prove.experiment import Experiment
from support.database import Row
from support.ledger_checker import Violation
from support.processes import ConditionTimeout, Process, eventually

KILL_ALL_ONE_IN = 12
BASELINE_LEASE_SECONDS = 5.0
LEASE_SECONDS = 0.6
READ_TRIES = 5
READ_PAUSE_SECONDS = 0.5
ZOMBIE_WAIT_SECONDS = 5.0
BURST_EVENTS = 600
BURST_SECONDS = 0.4
MIN_ZOMBIE_JOBS = 8
"""A zombie with fewer jobs has too little to do wrong."""


@dataclass(frozen=True)
class Target:
    """How often to inject a fault."""

    count: int
    seconds: float
    """The time over which to spread the faults."""
    limit_seconds: float
    """The time after which to give up on the rest."""
    rng: random.Random
    show: Callable[[int], None]
    """Called with the number of faults injected so far."""


def run_baseline(experiment: Experiment, seconds: float) -> None:
    """Inject nothing. No worker may lose a lease."""
    experiment.wait(seconds)
    for line in experiment.fleet.lost_leases():
        experiment.findings.add(Violation.LEASE_LOST, line)
    lost = experiment.ledger.value(
        "SELECT count(*) FROM onceward.attempts WHERE error LIKE 'The worker died%'"
    )
    if lost:
        experiment.findings.add(Violation.LEASE_LOST, f"{lost} jobs taken from a live worker")


def kill_processes(experiment: Experiment, target: Target) -> None:
    """SIGKILL processes at random: usually one, sometimes all at once."""
    fleet = experiment.fleet
    total = fleet.size.total
    started = time.monotonic()
    kills = 0
    while kills < target.count and time.monotonic() < started + target.limit_seconds:
        due = started + target.seconds * kills / target.count
        experiment.wait(max(0.0, due - time.monotonic()) * target.rng.uniform(0.5, 1.0))
        is_all = target.rng.randrange(KILL_ALL_ONE_IN) == 0
        slots = range(total) if is_all else [target.rng.randrange(total)]
        fleet.kill(*slots)
        kills += len(slots)
        experiment.tally["kills"] += len(slots)
        experiment.tally["kills of all processes at once"] += is_all and total > 1
        for slot in slots:
            role = "receiver" if fleet.is_receiver(slot) else "worker"
            experiment.tally[f"kills of a {role}"] += 1
        target.show(kills)


def make_zombies(experiment: Experiment, target: Target) -> None:
    """Suspend workers past the end of their leases; resume them when others have their jobs."""
    deadline = time.monotonic() + target.limit_seconds
    woken = 0
    while woken < target.count and time.monotonic() < deadline:
        # Reclaimed jobs run one at a time: older ones would delay those of the next zombie.
        _comes_true(lambda: not _has_solo_jobs(experiment))
        experiment.send(BURST_EVENTS, BURST_SECONDS)
        experiment.wait(target.rng.uniform(0.0, BURST_SECONDS))
        woken += make_zombie(experiment)
        target.show(woken)
    experiment.tally["zombies woken"] += woken


def make_zombie(
    experiment: Experiment, expire_leases: Callable[[], None] = lambda: time.sleep(LEASE_SECONDS)
) -> bool:
    """Suspend a busy worker, let its lease expire, and resume it.

    Return whether another worker finished a job of the lease meanwhile. SQLite has no second
    worker: there, return whether the suspended one held a lease.
    """
    worker = _busy_worker(experiment)
    return worker is not None and _suspend_past_lease(experiment, worker, expire_leases)


def _busy_worker(experiment: Experiment) -> Process | None:
    """Return a worker with enough claimed jobs; None if no worker gets enough in time."""
    busy: list[Process] = []
    enough = 1 if experiment.ledger.is_sqlite else MIN_ZOMBIE_JOBS

    def find_busy() -> bool:
        for slot in experiment.fleet.worker_slots:
            process = experiment.fleet.processes[slot]
            if len(_jobs_claimed_by(experiment, process.pid)) >= enough:
                busy.append(process)
        return bool(busy)

    return busy[0] if _comes_true(find_busy) else None


def _suspend_past_lease(
    experiment: Experiment, process: Process, expire_leases: Callable[[], None]
) -> bool:
    process.suspend()
    try:
        claimed = _jobs_claimed_by(experiment, process.pid)
        expire_leases()
        if experiment.ledger.is_sqlite:
            return bool(claimed)
        if not _comes_true(lambda: not _jobs_claimed_by(experiment, process.pid)):
            return False
        reclaimed = claimed & _queued_jobs(experiment)
        return bool(reclaimed) and _comes_true(lambda: not reclaimed <= _queued_jobs(experiment))
    finally:
        process.resume()


def _comes_true(condition: Callable[[], bool]) -> bool:
    try:
        return eventually(condition, "the condition holds", ZOMBIE_WAIT_SECONDS)
    except ConditionTimeout:
        return False


def _jobs_claimed_by(experiment: Experiment, pid: int) -> set[int]:
    """Return the unfinished jobs that a process holds a lease for."""
    ledger = experiment.ledger
    jobs = "json_each(l.jobs) AS held" if ledger.is_sqlite else "unnest(l.jobs) AS held (value)"
    statement = f"""
        SELECT j.id FROM onceward.leases l, {jobs}
        JOIN onceward.jobs j ON j.id = held.value AND j.status = 'queued'
        WHERE l.worker LIKE '%:{pid}'
    """  # noqa: S608 - no outside input
    return {job for (job,) in _read(experiment, statement)}


def _has_solo_jobs(experiment: Experiment) -> bool:
    statement = "SELECT count(*) FROM onceward.jobs WHERE status = 'queued' AND solo"
    ((count,),) = _read(experiment, statement)
    return int(count) > 0


def _queued_jobs(experiment: Experiment) -> set[int]:
    statement = "SELECT id FROM onceward.jobs WHERE status = 'queued'"
    return {job for (job,) in _read(experiment, statement)}


def _read(experiment: Experiment, statement: str) -> list[Row]:
    """Read from the ledger. A server that crashes, or whose clock is stepped, drops connections."""
    for _ in range(READ_TRIES - 1):
        with suppress(psycopg.OperationalError):
            return experiment.ledger.rows(statement)
        time.sleep(READ_PAUSE_SECONDS)  # the server is about to accept connections again
    return experiment.ledger.rows(statement)
