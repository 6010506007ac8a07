"""Receive: CPU time of the receiving process for each acknowledged request, beside the limits.

A rate on a shared machine also depends on the sender and the database. The CPU time of the process
does not, and it bounds the rate of a process that has a core of its own. All receivers run at the
same time and get bursts in alternation, as for ingest.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from bench.deliveries import Deliveries, prepare, random_ids
from bench.processes import send
from bench.registry import POSTGRES, RECEIVE, Contender
from bench.results import Sample
from bench.run import (
    REQUESTS_PER_SECOND,
    WARM_UP_SECONDS,
    Bursts,
    Receiver,
    Run,
    Schedule,
    Trial,
    require_success,
    round_order,
)

CASES = {f"{connections} connections": connections for connections in (64, 256)}

# CPU time is counted in clock ticks of 10 ms: about one percent of the cheapest burst.
MAX_BURST_SECONDS = 2.5
START_SECONDS = 2.5
BURST_OVERHEAD_SECONDS = 0.4
PREPARE_SECONDS_PER_REQUEST = 0.000_015
FIRST_SEED = 2_000_000


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan one trial a round, on PostgreSQL only."""
    contenders = run.contenders(RECEIVE)
    if run.options.store != POSTGRES or not contenders:
        return []
    bursts = schedule.bursts(MAX_BURST_SECONDS)
    contender_seconds = (
        START_SECONDS
        + WARM_UP_SECONDS
        + bursts.count * len(CASES) * (bursts.seconds + BURST_OVERHEAD_SECONDS)
    )
    prepare_seconds = bursts.count * len(CASES) * _requests(bursts) * PREPARE_SECONDS_PER_REQUEST
    return [
        Trial(
            f"receive, round {number + 1}",
            len(contenders) * contender_seconds + prepare_seconds,
            partial(_run_round, run, contenders, bursts, number),
        )
        for number in range(schedule.rounds)
    ]


def _requests(bursts: Bursts) -> int:
    return int(bursts.seconds * REQUESTS_PER_SECOND)


def _run_round(
    run: Run, contenders: Sequence[Contender], bursts: Bursts, number: int
) -> list[Sample]:
    samples = []
    with ExitStack() as stack:
        receivers = [stack.enter_context(run.receiver(contender)) for contender in contenders]
        for burst in range(bursts.count):
            # One file for all contenders, and none kept: the requests of a round take a gigabyte.
            ids = random_ids(len(CASES) * _requests(bursts), seed=FIRST_SEED + burst)
            deliveries = prepare(run.folder / RECEIVE, ids)
            for receiver in round_order(receivers, burst):
                for case in CASES:
                    values = _send(run, receiver, bursts, deliveries, case)
                    samples.append(Sample(receiver.contender.name, case, number, values))
    return samples


def _send(
    run: Run, receiver: Receiver, bursts: Bursts, deliveries: Deliveries, case: str
) -> dict[str, float]:
    """Send a burst of requests that this contender has not seen."""
    count = _requests(bursts)
    load_plan = run.load_plan(
        receiver.config,
        deliveries,
        bursts.seconds,
        connections=CASES[case],
        skip=list(CASES).index(case) * count,
        count=count,
    )
    before = receiver.server.cpu_seconds()
    report = require_success(send(load_plan), receiver.server)
    cpu_seconds = receiver.server.cpu_seconds() - before
    return {
        "cpu_us": cpu_seconds / report.acknowledged * 1e6,
        "rate": report.rate,
        "generator_us": report.generator_us,
    }
