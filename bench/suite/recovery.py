"""Recovery: the time from the SIGKILL of a worker until its jobs are done.

The handlers of the first worker wait for the kill. A second worker is idle until then. By default
nobody starts the first worker again. In the other case a supervisor does so at once, and the
time-outs of the contenders that have some are short.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.contenders.interface import SHORT_LEASE_SECONDS, ContenderConfig
from bench.parallel import ParallelGroup
from bench.processes import ContenderProcess, TrialFailed
from bench.registry import POSTGRES, RECOVERY, RECOVERY_RESTARTED, Contender
from bench.results import Sample
from bench.run import Run, Schedule, Trial
from bench.workloads import CommittedWork

DEFAULTS = "killed worker"
RESTARTED = f"killed worker, started again, time-outs of {SHORT_LEASE_SECONDS:g} s"

JOBS = 16
JOB_SECONDS = 0.05
HOLD_SECONDS = 600.0
"""The time of a job in the first worker: longer than a trial."""

START_SECONDS = 60.0
IDLE_SECONDS = 2.0
"""How long the second worker is idle before the kill: contenders do not report that they are."""
IDLE_CORES = 0.2
"""What an idle process uses at most, on average: some contenders poll."""

LIMIT_SECONDS = 60.0
TRIAL_SECONDS = 12.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Case:
    """How the contenders are set up, and which of them take part."""

    benchmark: str
    period_seconds: float
    """The longest time between two actions of a contender: the kills spread over it."""
    lease_seconds: float | None
    is_restarted: bool
    recovery_seconds: float
    """An estimate of the time that the slowest contender takes."""


CASES: Mapping[str, Case] = {
    DEFAULTS: Case(RECOVERY, 30.0, None, is_restarted=False, recovery_seconds=LIMIT_SECONDS),
    RESTARTED: Case(
        RECOVERY_RESTARTED,
        SHORT_LEASE_SECONDS,
        SHORT_LEASE_SECONDS,
        is_restarted=True,
        recovery_seconds=2 * SHORT_LEASE_SECONDS,
    ),
}


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan Onceward and then all others at once, in every round, on PostgreSQL only."""
    if run.options.store != POSTGRES:
        return []
    return [
        trial
        for case in CASES
        for number in range(schedule.rounds)
        for trial in _plan_round(run, case, number, number / schedule.rounds)
    ]


def _plan_round(run: Run, name: str, number: int, phase: float) -> Iterator[Trial]:
    case = CASES[name]
    contenders = run.contenders(case.benchmark)
    groups = [
        [contender for contender in contenders if contender.is_onceward],
        [contender for contender in contenders if not contender.is_onceward],
    ]
    delay_seconds = phase * case.period_seconds
    run_trial = partial(_run_trial, run, name, number, delay_seconds)
    for members in filter(None, groups if number % 2 == 0 else groups[::-1]):
        group = ParallelGroup(members, partial(_prepare, run), run_trial)
        seconds = TRIAL_SECONDS + delay_seconds
        if not members[0].is_onceward:
            seconds += case.recovery_seconds
        for contender in members:
            yield Trial(
                f"recovery, {name}, round {number + 1}: {contender.title}",
                seconds / len(members),
                partial(group.result, contender),
            )


def _jobs(run: Run) -> int:
    return min(JOBS, run.options.max_jobs or JOBS)


def _prepare(run: Run, contender: Contender) -> None:
    run.queued(contender, _jobs(run))


def _run_trial(
    run: Run, name: str, number: int, delay_seconds: float, contender: Contender
) -> list[Sample]:
    jobs, case = _jobs(run), CASES[name]
    started_file = run.folder / f"started-{contender.name}-{case.benchmark}-{number}"
    with (
        run.deployed(
            contender, run.queued(contender, jobs), lease_seconds=case.lease_seconds
        ) as deployed,
        ExitStack() as workers,
    ):
        config = deployed.with_changes(concurrency=jobs, job_seconds=JOB_SECONDS)
        if contender.has_redis:
            run.enqueue(contender, config, jobs)

        def start(worker: str, **changes: object) -> ContenderProcess:
            changed = config.with_changes(worker=worker, **changes)
            return workers.enter_context(ContenderProcess(contender.module, "work", changed))

        dying = start("first", job_seconds=HOLD_SECONDS, started_file=str(started_file))
        _wait_for_starts(dying, started_file, jobs)
        survivor = start("second")
        _wait_until_idle(survivor)
        time.sleep(delay_seconds)  # so that each round kills in another phase of the contender
        dying.check()
        killed_at = time.time()
        dying.kill()
        if case.is_restarted:
            start("first")
        values = _recover(config, survivor, jobs, killed_at)
    return [Sample(contender.name, name, number, values)]


def _wait_for_starts(worker: ContenderProcess, started_file: Path, jobs: int) -> None:
    """Wait until the handlers of all jobs run. Raises TrialFailed."""
    deadline = time.monotonic() + START_SECONDS
    while not started_file.exists() or started_file.stat().st_size < jobs:
        worker.check()
        if time.monotonic() > deadline:
            raise TrialFailed(f"not all jobs started in {START_SECONDS:g} s:\n{worker.log}")
        time.sleep(POLL_SECONDS)  # the contenders do not report starts


def _wait_until_idle(worker: ContenderProcess) -> None:
    """Wait until a worker has started and waits for jobs. Raises TrialFailed."""
    deadline = time.monotonic() + START_SECONDS
    last = worker.cpu_seconds()
    while time.monotonic() < deadline:
        time.sleep(IDLE_SECONDS)  # a process that starts uses the CPU
        worker.check()
        now = worker.cpu_seconds()
        if now - last <= IDLE_CORES * IDLE_SECONDS:
            return
        last = now
    raise TrialFailed(f"the second worker was not idle in {START_SECONDS:g} s:\n{worker.log}")


def _recover(
    config: ContenderConfig, survivor: ContenderProcess, jobs: int, killed_at: float
) -> dict[str, float]:
    """Wait for the commits of all jobs, and return when the first and the last one happened.

    A time that is not known counts with the limit. Raises TrialFailed.
    """
    with CommittedWork.open(config.database) as committed:
        while True:
            survivor.check()
            seconds = sorted(at - killed_at for at in committed.commit_times().values())
            if seconds and seconds[0] < 0:
                raise TrialFailed("a job of the first worker was done before the kill")
            is_late = time.time() - killed_at > LIMIT_SECONDS
            if len(seconds) >= jobs or is_late:
                first, *_ = seconds or [LIMIT_SECONDS]
                last = seconds[-1] if len(seconds) >= jobs else LIMIT_SECONDS
                return {"done": float(len(seconds)), "first_s": first, "last_s": last}
            time.sleep(POLL_SECONDS)  # the contenders do not report commits
