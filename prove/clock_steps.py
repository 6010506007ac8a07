"""Clock steps of an hour, forward and back: of the service, and of the database."""

import time

from prove.experiment import Experiment
from prove.workbench import Workbench
from support.fake_clock import SteppedClock

HOUR_SECONDS = 3600
EVENTS_PER_SECOND = 100
RECOVERY_LIMIT_SECONDS = 10.0
STEPPED_SECONDS = 0.5
WAITING_SECONDS = 60
"""A job that is due later than this waits because of the clock: retries come sooner."""


def step_clocks(bench: Workbench) -> None:
    """Step the clocks under load. SQLite uses the clock of the service."""
    count = bench.plan.clock_steps
    progress = bench.progress("clock steps", count)
    with (
        bench.stage("clock steps"),
        SteppedClock() as service_clock,
        SteppedClock() as database_clock,
        bench.server(environment=database_clock.environment) as server,
        bench.experiment(
            "clock", server.create(), environment=service_clock.environment
        ) as experiment,
    ):
        experiment.send(10**6, 10**6 / EVENTS_PER_SECOND)
        experiment.wait_until_recovered()
        clocks = [("service", service_clock)]
        clocks += [] if bench.is_sqlite else [("database", database_clock)]
        for number in range(count):
            name, clock = clocks[number // 2 % len(clocks)]
            offset = 0 if number % 2 else HOUR_SECONDS
            _step(experiment, name, clock, offset)
            progress(number + 1)
        for _, clock in clocks:  # the jobs that wait for the hour become due
            clock.step_to(HOUR_SECONDS)
        experiment.drain()


def _step(experiment: Experiment, name: str, clock: SteppedClock, offset: int) -> None:
    step = f"a step of the {name}'s clock {'forward' if offset else 'back'}"
    conditions = experiment.service_conditions()
    clock.step_to(offset)
    experiment.tally["clock steps"] += 1
    experiment.watch_recovery(step, conditions, RECOVERY_LIMIT_SECONDS)
    experiment.wait(STEPPED_SECONDS)
    if not offset:
        experiment.tally[f"jobs that wait for the {name}'s clock"] += _waiting_jobs(experiment)


def _waiting_jobs(experiment: Experiment) -> int:
    """Return how many jobs are due only when the clock has caught up."""
    ledger = experiment.ledger
    limit = time.time() + WAITING_SECONDS
    due = f"{limit * 1e6:.0f}" if ledger.is_sqlite else f"to_timestamp({limit})"
    condition = f"status = 'queued' AND available_at > {due}"
    return int(ledger.value(f"SELECT count(*) FROM onceward.jobs WHERE {condition}"))  # noqa: S608 - no outside input
