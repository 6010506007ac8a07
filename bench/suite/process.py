"""Process: jobs per second of one worker process, each with one statement in a transaction.

The clock starts a moment after the first commit, when connections, plans and batch sizes are warm.
"""

import time
from functools import partial

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
    return [Sample(contender.name, workload, number, {"rate": rate})]


def measure_rate(
    worker: ContenderProcess, config: ContenderConfig, *, jobs: int, max_seconds: float
) -> float:
    """Count commits until all jobs are done or the time is up. Raises TrialFailed."""
    first: tuple[float, int] | None = None
    warm: tuple[float, int] | None = None
    began = time.perf_counter()
    with CommittedWork.open(config.database) as committed:
        while True:
            worker.check()
            count, now = committed.count(config.workload), time.perf_counter()
            if first is None:
                first = (now, count) if count else None
                if count >= jobs:
                    raise TrialFailed(f"{jobs} jobs are too few: all were done at once")
                if now - began > FIRST_COMMIT_SECONDS:
                    raise TrialFailed(f"no commit in {FIRST_COMMIT_SECONDS:g} s:\n{worker.log}")
            elif warm is None and now - first[0] >= WARM_UP_SECONDS and count < jobs:
                warm = now, count
            since = warm or first
            if since is not None and (count >= jobs or now - since[0] > max_seconds):
                return (count - since[1]) / (now - since[0])
            time.sleep(POLL_SECONDS)  # counting takes time from the database
