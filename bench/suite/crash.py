"""Crash: lost events, missing effects and repeated effects after SIGKILL.

Receive: the receiver and its store are killed under load, and the acknowledged ids are looked for
in the restarted store. Work: a worker is killed three times in the middle of its jobs, and the
effects are counted. Redeliver: an event is sent again after its job is done.
"""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial

from bench.contenders.interface import SHORT_LEASE_SECONDS, ContenderConfig
from bench.parallel import ParallelGroup
from bench.processes import (
    ContenderProcess,
    TrialFailed,
    read_report,
    received_ids,
    send,
    sending,
)
from bench.registry import CRASH_RECEIVE, CRASH_WORK, POSTGRES, Contender
from bench.results import Sample
from bench.run import Run, Schedule, Trial
from bench.workloads import INSERT, CommittedWork

RECEIVE, WORK, REDELIVER = "receive", "work", "redeliver"

REQUESTS = 60_000
LOAD_SECONDS = 1.5
RECEIVE_SECONDS = 6.0

JOBS = 2_000
KILL_AFTER = (0.2, 0.4, 0.6)  # of the jobs
DRAIN_SECONDS = 90.0
QUIET_SECONDS = 2.5 * SHORT_LEASE_SECONDS  # without a new effect: the rest is lost
WORK_SECONDS = 70.0

REDELIVERY_SECONDS = 4.0
REDELIVER_SECONDS = 15.0

PARALLEL_CONTENDERS = 10
POLL_SECONDS = 0.02

RunCase = Callable[[Run, Contender], list[Sample]]


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan every case once for every contender: effects are counted, not timed."""
    del schedule
    if run.options.store != POSTGRES:
        return []
    return [
        *(
            Trial(f"crash, {RECEIVE}: {contender.title}", RECEIVE_SECONDS,
                  partial(_receive, run, contender))
            for contender in run.contenders(CRASH_RECEIVE)
        ),
        *_plan_parallel(run, WORK, WORK_SECONDS, _work),
        *_plan_parallel(run, REDELIVER, REDELIVER_SECONDS, _redeliver),
    ]  # fmt: skip


def _plan_parallel(run: Run, case: str, seconds: float, run_case: RunCase) -> Iterator[Trial]:
    contenders = run.contenders(CRASH_WORK)
    for first in range(0, len(contenders), PARALLEL_CONTENDERS):
        group = ParallelGroup(
            contenders[first : first + PARALLEL_CONTENDERS],
            partial(_prepare, run),
            partial(run_case, run),
        )
        for contender in group.contenders:
            yield Trial(
                f"crash, {case}: {contender.title}",
                seconds / len(group.contenders),
                partial(group.result, contender),
            )


def _receive(run: Run, contender: Contender) -> list[Sample]:
    journal = run.folder / "journal"
    deliveries = run.deliveries(REQUESTS)
    with run.deployed(contender) as config:
        with run.serving(contender, config) as server:
            load_plan = run.load_plan(config, deliveries, 60.0, journal=str(journal))
            with sending(load_plan) as generator:
                time.sleep(LOAD_SECONDS)  # of load before the kill
                server.kill()
                _crash_store(run, config)
                read_report(generator)
        numbers = json.loads(journal.read_text())["numbers"]
        acknowledged = {deliveries.ids[number] for number in numbers}
        lost = acknowledged - received_ids(contender.module, config)
    values = {"acknowledged": float(len(acknowledged)), "lost": float(len(lost))}
    return [Sample(contender.name, RECEIVE, 0, values)]


def _crash_store(run: Run, config: ContenderConfig) -> None:
    if config.redis_port:
        redis = run.redis_servers[config.redis_port]
        redis.kill()
        redis.start()
    else:
        run.databases.crash()


def _jobs(run: Run, contender: Contender) -> int:
    return min(JOBS, run.jobs(contender))


def _prepare(run: Run, contender: Contender) -> None:
    run.queued(contender, _jobs(run, contender))


def _work(run: Run, contender: Contender) -> list[Sample]:
    jobs = _jobs(run, contender)
    queued = run.queued(contender, jobs)
    with run.deployed(contender, queued, lease_seconds=SHORT_LEASE_SECONDS) as config:
        if contender.has_redis:
            run.enqueue(contender, config, jobs)
        for share in KILL_AFTER:
            with ContenderProcess(contender.module, "work", config) as worker:
                _wait_for_effects(config, worker, int(share * jobs), 2 * SHORT_LEASE_SECONDS)
        with ContenderProcess(contender.module, "work", config) as worker:
            _wait_for_effects(config, worker, jobs, DRAIN_SECONDS)
        with CommittedWork.open(config.database) as committed:
            runs = committed.runs_by_event()
    repeated = sum(count - 1 for count in runs.values())
    values = {"jobs": float(jobs), "repeated": float(repeated), "missing": float(jobs - len(runs))}
    return [Sample(contender.name, WORK, 0, values)]


def _wait_for_effects(
    config: ContenderConfig, worker: ContenderProcess, events: int, seconds: float
) -> None:
    """Wait until so many events had an effect, or no new effect appears."""
    deadline = time.monotonic() + seconds
    changed_at, last = time.monotonic(), -1
    with CommittedWork.open(config.database) as committed:
        while (count := len(committed.runs_by_event())) < events and time.monotonic() < deadline:
            worker.check()
            if count != last:
                changed_at, last = time.monotonic(), count
            if time.monotonic() - changed_at > QUIET_SECONDS:
                return
            time.sleep(POLL_SECONDS)  # the contenders do not report commits


def _redeliver(run: Run, contender: Contender) -> list[Sample]:
    with run.deployed(contender, has_notifications=True) as config:
        deliveries = run.deliveries(REQUESTS)
        once = run.load_plan(config, deliveries, 5.0, connections=1, count=1)
        with (
            ContenderProcess(contender.module, "serve", config) as server,
            ContenderProcess(contender.module, "work", config) as worker,
        ):
            server.wait_until_serving()
            send(once)
            _wait_for_effects(config, worker, 1, REDELIVERY_SECONDS * 3)
            time.sleep(REDELIVERY_SECONDS / 2)  # until the job is settled, not only its effect
            send(once)
            time.sleep(REDELIVERY_SECONDS)  # time for a second run, whose absence has no signal
        with CommittedWork.open(config.database) as committed:
            runs = committed.count(INSERT)
    if not runs:
        raise TrialFailed(f"{contender.name} ran nothing")
    return [Sample(contender.name, REDELIVER, 0, {"runs": float(runs)})]
