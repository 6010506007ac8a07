"""Ingest: requests acknowledged per second, each event stored once.

The speed of a shared machine changes from second to second. All receivers therefore run at the same
time, and each gets a burst of a second, one contender after the other, under one load after the
other.
"""

from contextlib import ExitStack
from functools import partial

from bench.deliveries import HALF_DUPLICATES, LOADS, UNIQUE
from bench.processes import send
from bench.registry import INGEST
from bench.results import Sample
from bench.run import (
    REQUESTS_PER_SECOND,
    WARM_UP_SECONDS,
    Bursts,
    Receiver,
    Run,
    Schedule,
    Trial,
    alternate,
    require_success,
)

START_SECONDS = 2.5
BURST_OVERHEAD_SECONDS = 0.3
MAX_BURST_SECONDS = 1.0

# A burst of duplicates needs half as many requests: each is sent twice.
REQUESTS_PER_BURST = REQUESTS_PER_SECOND * 3 // 2


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan one trial a round: every contender gets the same bursts under every load."""
    bursts = schedule.bursts(MAX_BURST_SECONDS)
    burst_seconds = bursts.seconds + BURST_OVERHEAD_SECONDS
    contender_seconds = START_SECONDS + WARM_UP_SECONDS + bursts.count * len(LOADS) * burst_seconds
    return [
        Trial(
            f"ingest, round {number + 1}",
            len(run.contenders(INGEST)) * contender_seconds,
            partial(_run_round, run, bursts, number),
        )
        for number in range(schedule.rounds)
    ]


def _run_round(run: Run, bursts: Bursts, number: int) -> list[Sample]:
    samples = []
    with ExitStack() as stack:
        receivers = {
            contender.name: stack.enter_context(run.receiver(contender))
            for contender in run.contenders(INGEST)
            if not contender.has_worker
        }
        for burst, contender in alternate(run.contenders(INGEST), bursts.count):
            with ExitStack() as burst_stack:
                receiver = receivers.get(contender.name)
                if receiver is None:  # its worker would take time from the other contenders
                    receiver = burst_stack.enter_context(run.receiver(contender))
                for load in LOADS:
                    values = _send(run, receiver, bursts, load, burst)
                    samples.append(Sample(contender.name, load, number, values))
    return samples


def _send(run: Run, receiver: Receiver, bursts: Bursts, load: str, burst: int) -> dict[str, float]:
    """Send a burst of requests that this contender has not seen, unless the load repeats one."""
    first = burst * REQUESTS_PER_BURST
    skip, count = {
        UNIQUE: (first, REQUESTS_PER_SECOND),
        HALF_DUPLICATES: (first + REQUESTS_PER_SECOND, REQUESTS_PER_SECOND // 2),
    }.get(load, (0, 1))
    load_plan = run.load_plan(
        receiver.config,
        run.deliveries(bursts.count * REQUESTS_PER_BURST),
        bursts.seconds,
        load=load,
        skip=skip,
        count=count,
    )
    report = require_success(send(load_plan), receiver.server)
    return {
        "rate": report.rate,
        "p50_ms": report.p50_ms,
        "p99_ms": report.p99_ms,
        "generator_us": report.generator_us,
    }
