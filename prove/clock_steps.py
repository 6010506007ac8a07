"""Clock steps of an hour, forward and back: of the service, and of the database."""

import time
from functools import partial

from prove.experiment import DRAIN_SECONDS, MAX_BACKLOG_JOBS, Experiment
from prove.process_faults import BURST_EVENTS, BURST_SECONDS, make_zombie
from prove.workbench import Workbench
from support.fake_clock import SteppedClock
from support.ledger_checker import Violation

HOUR_SECONDS = 3600
EVENTS_PER_SECOND = 100
RECOVERY_LIMIT_SECONDS = 10.0
STEPPED_SECONDS = 0.5
LEASE_SECONDS = 30.0
"""Long enough that only a step of the clock ends a lease."""

ZOMBIE_ATTEMPTS = 6
ZOMBIES = "zombies woken after a clock step"
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
            "clock",
            server.create(),
            environment=service_clock.environment,
            lease_seconds=LEASE_SECONDS,
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
            clock.step_to(2 * HOUR_SECONDS)
        experiment.drain()


def _step(experiment: Experiment, name: str, clock: SteppedClock, offset: int) -> None:
    """Step a clock. A step forward of the clock that leases use finds a worker suspended."""
    step = f"a step of the {name}'s clock {'forward' if offset else 'back'}"
    experiment.tally["clock steps"] += 1
    if offset and (name == "database" or experiment.ledger.is_sqlite):
        _step_past_lease(experiment, clock)
    else:
        clock.step_to(offset)
    conditions = experiment.service_conditions()
    experiment.watch_recovery(step, conditions, RECOVERY_LIMIT_SECONDS)
    if offset:
        _expect_short_backlog(experiment)
    else:
        experiment.wait(STEPPED_SECONDS)
        experiment.tally[f"jobs that wait for the {name}'s clock"] += _waiting_jobs(experiment)


def _step_past_lease(experiment: Experiment, clock: SteppedClock) -> None:
    """Step forward while a worker is suspended, so that the step alone ends its lease."""
    for attempt in range(ZOMBIE_ATTEMPTS):
        experiment.send(BURST_EVENTS, BURST_SECONDS)
        # A worker may have been idle when it was suspended: the next try needs a further step.
        offset = HOUR_SECONDS + attempt * round(2 * LEASE_SECONDS)
        if make_zombie(experiment, partial(clock.step_to, offset)):
            experiment.tally[ZOMBIES] += 1
            break
    experiment.send(10**6, 10**6 / EVENTS_PER_SECOND)


def _expect_short_backlog(experiment: Experiment) -> None:
    """Wait until the burst is done, because the load pauses while many jobs wait for the clock."""
    experiment.load_generator.limit = 0
    experiment.expect(
        lambda: experiment.backlog() < MAX_BACKLOG_JOBS // 4,
        "the backlog is short",
        DRAIN_SECONDS,
        otherwise=Violation.UNFINISHED,
    )
    experiment.send(10**6, 10**6 / EVENTS_PER_SECOND)


def _waiting_jobs(experiment: Experiment) -> int:
    """Return how many jobs are due only when the clock has caught up."""
    ledger = experiment.ledger
    limit = time.time() + WAITING_SECONDS
    due = f"{limit * 1e6:.0f}" if ledger.is_sqlite else f"to_timestamp({limit})"
    condition = f"status = 'queued' AND available_at > {due}"
    return int(ledger.value(f"SELECT count(*) FROM onceward.jobs WHERE {condition}"))  # noqa: S608 - no outside input
