"""What is done to a service under load: kills, freezes, crashes; and nothing at all."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from prove.checker import Rule
from prove.trial import Trial
from support.postgres import Cluster
from support.processes import Process, TooLate, eventually

GROUP_KILL_ONE_IN = 12
CALM_LEASE_SECONDS = 5.0
LEASE_SECONDS = 0.6
FREEZE_SECONDS = 3.0
BURST_EVENTS = 600
BURST_SECONDS = 0.4
HELD_JOBS = 8
"""With fewer in its hands, a zombie has hardly anything to do wrong."""


@dataclass(frozen=True)
class Aim:
    """How often to do a thing, in how much time at most."""

    count: int
    seconds: float
    """In how much time it should be done."""
    limit_seconds: float
    dice: random.Random
    show: Callable[[int], None]
    """Shows how often it is done."""


def keep_calm(trial: Trial, seconds: float) -> None:
    """No fault at all: then no worker may lose a lease."""
    trial.wait(seconds)
    for line in trial.town.lost_leases():
        trial.findings.add(Rule.LEASE_LOST, line)
    blamed = trial.ledger.value(
        "SELECT count(*) FROM onceward.attempts WHERE error LIKE 'The worker died%'"
    )
    if blamed:
        trial.findings.add(Rule.LEASE_LOST, f"{blamed} jobs were taken from a living worker")


def kill(trial: Trial, aim: Aim) -> None:
    """SIGKILL processes at random, one at a time and now and then all at once."""
    town = trial.town
    begun = time.monotonic()
    kills = 0
    while kills < aim.count and time.monotonic() < begun + aim.limit_seconds:
        due = begun + aim.seconds * kills / aim.count
        trial.wait(max(0.0, due - time.monotonic()) * aim.dice.uniform(0.5, 1.0))
        everybody = aim.dice.randrange(GROUP_KILL_ONE_IN) == 0
        victims = range(town.size) if everybody else [aim.dice.randrange(town.size)]
        town.kill(*victims)
        kills += len(victims)
        trial.tally["kills"] += len(victims)
        trial.tally["kills of everybody at once"] += everybody and town.size > 1
        for place in victims:
            sort = "receiver" if town.is_receiver(place) else "worker"
            trial.tally[f"kills of a {sort}"] += 1
        aim.show(kills)


def make_zombies(trial: Trial, aim: Aim) -> None:
    """SIGSTOP workers past the end of their leases, and wake them when others have their jobs."""
    deadline = time.monotonic() + aim.limit_seconds
    woken = 0
    while woken < aim.count and time.monotonic() < deadline:
        trial.load(BURST_EVENTS, BURST_SECONDS)
        trial.wait(aim.dice.uniform(0.0, BURST_SECONDS))
        victim = _busiest(trial)
        woken += victim is not None and _make_zombie(trial, victim)
        aim.show(woken)
    trial.tally["zombies woken"] += woken


def _busiest(trial: Trial) -> Process | None:
    """A worker that has enough in its hands to do wrong; None when nobody has for a while."""
    busy: list[Process] = []
    enough = 1 if trial.ledger.is_sqlite else HELD_JOBS

    def look() -> bool:
        for place in trial.town.workers:
            process = trial.town.places[place]
            if len(_held_by(trial, process.pid)) >= enough:
                busy.append(process)
        return bool(busy)

    return busy[0] if _becomes(look) else None


def _make_zombie(trial: Trial, process: Process) -> bool:
    """Whether it held jobs when it was frozen, and others had done some of them when it woke."""
    process.freeze()
    try:
        held = _held_by(trial, process.pid)
        if trial.ledger.is_sqlite:  # nobody else works there: it will meet its own ended leases
            time.sleep(LEASE_SECONDS * 1.5 if held else 0.0)  # past the lease, by its clock
            return bool(held)
        if not _becomes(lambda: not _held_by(trial, process.pid)):
            return False
        rescued = held & _queued(trial)
        return bool(rescued) and _becomes(lambda: not rescued <= _queued(trial))
    finally:
        process.thaw()


def _becomes(look: Callable[[], bool]) -> bool:
    try:
        return eventually(look, "it becomes so", FREEZE_SECONDS)
    except TooLate:
        return False


def _held_by(trial: Trial, pid: int) -> set[int]:
    """The jobs in a process's hands."""
    jobs = (
        "json_each(l.jobs) AS held" if trial.ledger.is_sqlite else "unnest(l.jobs) AS held (value)"
    )
    statement = f"""
        SELECT j.id FROM onceward.leases l, {jobs}
        JOIN onceward.jobs j ON j.id = held.value AND j.status = 'queued'
        WHERE l.worker LIKE '%:{pid}'
    """  # noqa: S608 - our own
    return {job for (job,) in trial.ledger.rows(statement)}


def _queued(trial: Trial) -> set[int]:
    statement = "SELECT id FROM onceward.jobs WHERE status = 'queued'"
    return {job for (job,) in trial.ledger.rows(statement)}


def crash_server(trial: Trial, cluster: Cluster, aim: Aim) -> None:
    """Let PostgreSQL die under load, and start it again; the service comes back by itself."""
    deadline = time.monotonic() + aim.limit_seconds
    for number in range(aim.count):
        if time.monotonic() > deadline:
            break
        if not trial.wait_until_back(aim.dice.randrange(10, 100)):
            break
        cluster.crash()
        time.sleep(aim.dice.uniform(0.0, 0.2))  # how long it is away, by chance
        cluster.start()
        if not trial.wait_until_back():
            break
        trial.tend()
        trial.tally["PostgreSQL crashes"] += 1
        aim.show(number + 1)
