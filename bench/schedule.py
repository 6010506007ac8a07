"""The benchmarks, and the rounds and seconds behind the published figures.

Together they take about 75 minutes on two cores.
"""

from collections.abc import Callable, Mapping

from bench.registry import POSTGRES, SQLITE
from bench.run import Run, Schedule, Trial
from bench.suite import (
    crash,
    fairness,
    growth,
    ingest,
    latency,
    process,
    receive,
    recovery,
    retention,
    shapes,
    single,
    storm,
    verify,
)

BENCHMARKS: Mapping[str, Callable[[Run, Schedule], list[Trial]]] = {
    "ingest": ingest.plan,
    "receive": receive.plan,
    "single": single.plan,
    "verify": verify.plan,
    "process": process.plan,
    "shapes": shapes.plan,
    "latency": latency.plan,
    "growth": growth.plan,
    "crash": crash.plan,
    "recovery": recovery.plan,
    "fairness": fairness.plan,
    "storm": storm.plan,
    "retention": retention.plan,
}

PUBLISHED: Mapping[str, Mapping[str, Schedule]] = {
    POSTGRES: {
        "ingest": Schedule(rounds=1, seconds=4.0),
        "receive": Schedule(rounds=1, seconds=15.0),
        "single": Schedule(rounds=3, seconds=1.5),
        "verify": Schedule(rounds=3),
        "process": Schedule(rounds=3, seconds=1.5),
        "shapes": Schedule(rounds=7, seconds=2.0),
        "latency": Schedule(rounds=5, seconds=10.5),  # over 1,000 samples at 100/s, for p99
        "growth": Schedule(rounds=1, seconds=1.0),
        "crash": Schedule(rounds=1),
        "recovery": Schedule(rounds=3),
        "fairness": Schedule(rounds=2, seconds=3.0),
        "storm": Schedule(rounds=1, seconds=14.0),
        "retention": Schedule(rounds=5, seconds=6.0),
    },
    SQLITE: {
        "ingest": Schedule(rounds=1, seconds=3.0),
        "process": Schedule(rounds=2, seconds=1.5),
        "latency": Schedule(rounds=5, seconds=10.5),
    },
}

QUICK = Schedule(rounds=1, seconds=1.0)
