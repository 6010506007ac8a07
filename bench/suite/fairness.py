"""Fairness: how long the events of a quick handler wait beside the jobs of another handler."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.contenders.interface import ContenderConfig
from bench.load_generator import percentiles_ms
from bench.neighbours import BACKLOGS, EVENT_TYPE, FAILING, NAME, QUICK, SLOW
from bench.processes import ContenderProcess, send
from bench.registry import FAIRNESS, POSTGRES, Contender
from bench.results import Sample
from bench.run import Receiver, Run, Schedule, Trial, alternate, require_success
from bench.seed import RANDOM, seed_queued
from bench.workloads import CommittedWork

RATE = 100.0
REQUESTS = 2_000
WARM_UP_SECONDS = 1.0
HEAD_START_SECONDS = 4.0
"""How long every worker has run before the clock starts, with its start and the warm-up."""

LIMIT_SECONDS = 15.0
"""The longest wait. An event that is not done by then counts with it."""

TRIAL_SECONDS = 10.0
POLL_SECONDS = 0.05

ALONE = "alone"
CASES = {
    ALONE: "",
    f"beside {BACKLOGS[FAILING]:,} jobs that always fail": FAILING,
    f"beside {BACKLOGS[QUICK]:,} quick jobs": QUICK,
    f"beside {BACKLOGS[SLOW]:,} jobs of 1 s": SLOW,
}


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan every case once a round, the contenders in alternating order, on PostgreSQL only."""
    if run.options.store != POSTGRES:
        return []
    return [
        Trial(
            f"fairness, {case}, round {number + 1}: {contender.title}",
            TRIAL_SECONDS + schedule.seconds,
            partial(_run_trial, run, contender, case, schedule, number),
        )
        for case in CASES
        for number, contender in alternate(run.contenders(FAIRNESS), schedule.rounds)
    ]


def _run_trial(
    run: Run, contender: Contender, case: str, schedule: Schedule, number: int
) -> list[Sample]:
    with _running(run, contender, CASES[case]) as receiver:
        journal = run.folder / "journal"
        deliveries = run.deliveries(REQUESTS)
        load = run.load_plan(
            receiver.config, deliveries, schedule.seconds, rate=RATE, journal=str(journal)
        )
        require_success(send(load), receiver.server)
        acknowledged = json.loads(journal.read_text())
        ids = [deliveries.ids[number] for number in acknowledged["numbers"]]
        values = _measure(receiver.config, ids, acknowledged["sent_at"])
    return [Sample(contender.name, case, number, values)]


@contextmanager
def _running(run: Run, contender: Contender, neighbour: str) -> Iterator[Receiver]:
    """Run the receiver, and a worker that has begun with the neighbour's backlog.

    A worker that ends would look like one that lets events wait: raises TrialFailed.
    """
    with (
        run.deployed(contender, has_notifications=True, neighbour=neighbour) as config,
        ContenderProcess(contender.module, "serve", config) as server,
    ):
        server.wait_until_serving()
        if neighbour:
            _queue_backlog(run, contender, config)
        with ContenderProcess(contender.module, "work", config) as worker:
            measured_from = time.monotonic() + HEAD_START_SECONDS
            deliveries = run.deliveries(REQUESTS // 2)
            warm_up = run.load_plan(config, deliveries, WARM_UP_SECONDS, rate=RATE / 10)
            require_success(send(warm_up), server)
            # A wait for the first commit would end earlier for some, with more of the backlog left.
            time.sleep(max(0.0, measured_from - time.monotonic()))  # the warm-up
            yield Receiver(contender, config, server)
            worker.check()


def _queue_backlog(run: Run, contender: Contender, config: ContenderConfig) -> None:
    jobs = min(BACKLOGS[config.neighbour], run.options.max_jobs or BACKLOGS[config.neighbour])
    if contender.is_onceward:
        seed_queued(config.database, jobs, id_order=RANDOM, handler=NAME, type=EVENT_TYPE)
    else:
        run.enqueue(contender, config, jobs)
    run.databases.settle(config.database)


def _measure(
    config: ContenderConfig, ids: Sequence[str], sent_at: Sequence[float]
) -> dict[str, float]:
    """Wait for the commits of all events, and return their rate and how long they took."""
    deadline = max(sent_at) + LIMIT_SECONDS
    with CommittedWork.open(config.database) as committed:
        while not (times := committed.commit_times()).keys() >= set(ids):
            if time.time() > deadline:
                break
            time.sleep(POLL_SECONDS)  # the contenders do not report commits
    done = [times[event_id] for event_id in ids if event_id in times]
    end = max(done) if len(done) == len(ids) else deadline
    waits = [
        min(times[event_id] - at, LIMIT_SECONDS) if event_id in times else LIMIT_SECONDS
        for event_id, at in zip(ids, sent_at, strict=True)
    ]
    p50, p99, longest = percentiles_ms(waits)
    rate = len(done) / (end - min(sent_at))
    return {"rate": rate, "p50_ms": p50, "p99_ms": p99, "max_ms": longest}
