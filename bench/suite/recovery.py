"""Recovery: the time from the SIGKILL of a worker until another worker has done its jobs.

The handlers of the first worker wait for the kill. The second one is idle until then.
"""

import time
from functools import partial
from pathlib import Path

from bench.contenders.interface import ContenderConfig
from bench.parallel import ParallelGroup
from bench.processes import ContenderProcess, TrialFailed
from bench.registry import POSTGRES, RECOVERY, Contender
from bench.results import Sample
from bench.run import Run, Schedule, Trial
from bench.workloads import CommittedWork

CASE = "killed worker"
JOBS = 16
JOB_SECONDS = 0.05
HOLD_SECONDS = 600.0
"""The time of a job in the first worker: longer than a trial."""

START_SECONDS = 60.0
IDLE_SECONDS = 4.0
"""Time for the second worker to start. Contenders do not report that they are ready."""

LIMIT_SECONDS = 60.0
TRIAL_SECONDS = 15.0
POLL_SECONDS = 0.05


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan Onceward and then all others at once, in every round, on PostgreSQL only."""
    if run.options.store != POSTGRES:
        return []
    contenders = run.contenders(RECOVERY)
    groups = [
        [contender for contender in contenders if contender.is_onceward],
        [contender for contender in contenders if not contender.is_onceward],
    ]
    trials = []
    for number in range(schedule.rounds):
        for members in filter(None, groups if number % 2 == 0 else groups[::-1]):
            group = ParallelGroup(members, partial(_prepare, run), partial(_run_trial, run, number))
            seconds = TRIAL_SECONDS
            if not members[0].is_onceward:
                seconds = (TRIAL_SECONDS + LIMIT_SECONDS) / len(members)
            trials += [
                Trial(
                    f"recovery, round {number + 1}: {contender.title}",
                    seconds,
                    partial(group.result, contender),
                )
                for contender in members
            ]
    return trials


def _jobs(run: Run) -> int:
    return min(JOBS, run.options.max_jobs or JOBS)


def _prepare(run: Run, contender: Contender) -> None:
    run.queued(contender, _jobs(run))


def _run_trial(run: Run, number: int, contender: Contender) -> list[Sample]:
    jobs = _jobs(run)
    started_file = run.folder / f"started-{contender.name}-{number}"
    with run.deployed(contender, run.queued(contender, jobs)) as deployed:
        config = deployed.with_changes(concurrency=jobs)
        if contender.has_redis:
            run.enqueue(contender, config, jobs)
        first = config.with_changes(
            worker="first", job_seconds=HOLD_SECONDS, started_file=str(started_file)
        )
        second = config.with_changes(worker="second", job_seconds=JOB_SECONDS)
        with ContenderProcess(contender.module, "work", first) as dying:
            _wait_for_starts(dying, started_file, jobs)
            with ContenderProcess(contender.module, "work", second) as survivor:
                time.sleep(IDLE_SECONDS)  # the survivor starts and becomes idle
                dying.check()
                killed_at = time.time()
                dying.kill()
                values = _recover(config, survivor, jobs, killed_at)
    return [Sample(contender.name, CASE, number, values)]


def _wait_for_starts(worker: ContenderProcess, started_file: Path, jobs: int) -> None:
    """Wait until the handlers of all jobs run. Raises TrialFailed."""
    deadline = time.monotonic() + START_SECONDS
    while not started_file.exists() or started_file.stat().st_size < jobs:
        worker.check()
        if time.monotonic() > deadline:
            raise TrialFailed(f"not all jobs started in {START_SECONDS:g} s:\n{worker.log}")
        time.sleep(POLL_SECONDS)  # the contenders do not report starts


def _recover(
    config: ContenderConfig, survivor: ContenderProcess, jobs: int, killed_at: float
) -> dict[str, float]:
    """Wait for the commits of all jobs, and return when the first and the last one happened."""
    with CommittedWork.open(config.database) as committed:
        while True:
            survivor.check()
            seconds = sorted(at - killed_at for at in committed.commit_times().values())
            if len(seconds) >= jobs:
                return {"done": float(jobs), "first_s": seconds[0], "last_s": seconds[-1]}
            if time.time() - killed_at > LIMIT_SECONDS:
                return {"done": float(len(seconds)), "last_s": LIMIT_SECONDS}
            time.sleep(POLL_SECONDS)  # the contenders do not report commits
