"""Process: jobs per second of one worker, each with one statement in a transaction.

A worker is one process, but Celery's has a child for each handler at once.

The clock starts a moment after the first commit, when connections, plans and batch sizes are warm.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bench.checks import check_work
from bench.contenders.interface import ContenderConfig
from bench.processes import ContenderProcess, TrialFailed
from bench.registry import PROCESS, Contender
from bench.results import Sample
from bench.run import Run, Schedule, Trial, alternate
from bench.workloads import WORKLOADS, CommittedWork

POLL_SECONDS = 0.05
FIRST_COMMIT_SECONDS = 30.0
WARM_UP_SECONDS = 0.5
START_SECONDS = 2.0

ReadCpu = Callable[[CommittedWork], Mapping[str, float]]
"""Returns the CPU seconds so far of some processes, by the name of the part they play."""


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan every contender once a round under each workload, in alternating order."""
    seconds = START_SECONDS + WARM_UP_SECONDS + schedule.seconds
    return [
        Trial(
            f"process, {workload}, round {number + 1}: {contender.title}",
            seconds,
            partial(_run_trial, run, contender, workload, schedule, number),
        )
        for workload in WORKLOADS
        for number, contender in alternate(run.contenders(PROCESS), schedule.rounds)
    ]


def _run_trial(
    run: Run, contender: Contender, workload: str, schedule: Schedule, number: int
) -> list[Sample]:
    jobs = run.jobs(contender)
    with run.deployed(contender, run.queued(contender, jobs), workload=workload) as config:
        if contender.has_redis:
            run.enqueue(contender, config, jobs)
        with ContenderProcess(contender.module, "work", config) as worker:
            rate = measure_rate(worker, config, jobs=jobs, max_seconds=schedule.seconds)
        check_work(contender, config)
    return [Sample(contender.name, workload, number, {"rate": rate})]


def measure_rate(
    worker: ContenderProcess, config: ContenderConfig, *, jobs: int, max_seconds: float
) -> float:
    """Return the jobs per second of `measure_work`. Raises TrialFailed."""
    return measure_work(worker, config, jobs=jobs, max_seconds=max_seconds)["rate"]


def _read_no_cpu(_: CommittedWork) -> Mapping[str, float]:
    return {}


@dataclass(frozen=True)
class _Reading:
    """The commits and the CPU time at one moment."""

    at: float
    jobs: int
    cpu_seconds: Mapping[str, float]

    def until(self, end: "_Reading") -> dict[str, float]:
        """Return the rate, and the CPU time of a job, between two readings."""
        jobs = end.jobs - self.jobs
        costs = {
            f"{name}_us": (end.cpu_seconds[name] - before) / jobs * 1e6
            for name, before in self.cpu_seconds.items()
            if jobs
        }
        return {"rate": jobs / (end.at - self.at), **costs}


def measure_work(
    worker: ContenderProcess,
    config: ContenderConfig,
    *,
    jobs: int,
    max_seconds: float,
    read_cpu: ReadCpu = _read_no_cpu,
) -> dict[str, float]:
    """Count commits until all jobs are done or the time is up. Raises TrialFailed.

    Returns the rate, and the CPU time of a job for each part that `read_cpu` returns.
    """
    first: _Reading | None = None
    warm: _Reading | None = None
    began = time.perf_counter()
    with CommittedWork.open(config.database) as committed:
        while True:
            worker.check()
            count, now = committed.count(config.workload), time.perf_counter()
            if first is None:
                first = _Reading(now, count, read_cpu(committed)) if count else None
                if count >= jobs:
                    raise TrialFailed(f"{jobs} jobs are too few: all were done at once")
                if now - began > FIRST_COMMIT_SECONDS:
                    raise TrialFailed(f"no commit in {FIRST_COMMIT_SECONDS:g} s:\n{worker.log}")
            elif warm is None and now - first.at >= WARM_UP_SECONDS and count < jobs:
                warm = _Reading(now, count, read_cpu(committed))
            since = warm or first
            if since is not None and (count >= jobs or now - since.at > max_seconds):
                return since.until(_Reading(now, count, read_cpu(committed)))
            time.sleep(POLL_SECONDS)  # counting takes time from the database
