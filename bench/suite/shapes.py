"""Shapes: jobs per second and CPU time of a job, for handlers of each shape that users write.

Onceward with own transactions runs beside the hand-written loops, with the same statements and as
many handlers at once. The rate is measured as in `process`. The CPU time depends less than the rate
on the other load of the machine.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from bench.checks import check_work
from bench.processes import ContenderProcess, server_cpu_seconds
from bench.registry import CONCURRENCY, POSTGRES, SHAPES, SHAPES_LOOP_ASYNCPG, Contender
from bench.results import Sample
from bench.run import Run, Schedule, Trial, alternate
from bench.shapes import EFFECTS, OWN, SYNC, WAITING
from bench.suite.process import START_SECONDS, WARM_UP_SECONDS, measure_work
from bench.workloads import CommittedWork

WAIT_SECONDS = 0.02
WAITING_CONCURRENCY = 64
"""Handlers at once that mostly wait: more than the cores could run."""

CASES: Mapping[str, Mapping[str, Any]] = {
    OWN: {"concurrency": CONCURRENCY},
    EFFECTS: {"concurrency": CONCURRENCY},
    SYNC: {"concurrency": CONCURRENCY},
    WAITING: {"concurrency": WAITING_CONCURRENCY, "job_seconds": WAIT_SECONDS},
}
"""The settings of each shape, the same for all sides."""


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan every contender once a round with each shape, in alternating order, on PostgreSQL."""
    if run.options.store != POSTGRES:
        return []
    seconds = START_SECONDS + WARM_UP_SECONDS + schedule.seconds
    return [
        Trial(
            f"shapes, {shape}, round {number + 1}: {contender.title}",
            seconds,
            partial(_run_trial, run, contender, shape, schedule, number),
        )
        for shape in CASES
        for number, contender in alternate(_contenders(run, shape), schedule.rounds)
    ]


def _contenders(run: Run, shape: str) -> list[Contender]:
    """Return the contenders that have a handler of a shape: asyncpg has no sync interface."""
    without = {SHAPES_LOOP_ASYNCPG} if shape == SYNC else set()
    return [each for each in run.contenders(SHAPES) if each.name not in without]


def _run_trial(
    run: Run, contender: Contender, shape: str, schedule: Schedule, number: int
) -> list[Sample]:
    jobs = run.jobs(contender)
    with run.deployed(contender, run.queued(contender, jobs), shape=shape) as deployed:
        config = deployed.with_changes(**CASES[shape])
        with ContenderProcess(contender.module, "work", config) as worker:
            values = measure_work(
                worker,
                config,
                jobs=jobs,
                max_seconds=schedule.seconds,
                read_cpu=partial(_cpu_seconds, run, worker),
            )
        check_work(contender, config)
    return [Sample(contender.name, shape, number, values)]


def _cpu_seconds(run: Run, worker: ContenderProcess, committed: CommittedWork) -> dict[str, float]:
    """Return the CPU time so far of both sides, without the backend that counts the commits."""
    pids = [pid for pid in run.databases.server_pids() if pid != committed.backend_pid]
    return {"worker": worker.cpu_seconds(), "postgres": server_cpu_seconds(pids)}


CAPTION = (
    f"Jobs per second of one worker process, and CPU time of a job. {CONCURRENCY} handlers at "
    f"once; {WAITING}: {WAITING_CONCURRENCY} at once, each waits {WAIT_SECONDS * 1_000:g} ms."
)
