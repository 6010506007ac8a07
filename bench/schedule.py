"""The benchmarks, and the rounds and seconds behind the published figures.

Together they take under 35 minutes on two cores.
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
    single,
    verify,
)

BENCHMARKS: Mapping[str, Callable[[Run, Schedule], list[Trial]]] = {
    "ingest": ingest.plan,
    "receive": receive.plan,
    "single": single.plan,
    "verify": verify.plan,
    "process": process.plan,
    "latency": latency.plan,
    "growth": growth.plan,
    "crash": crash.plan,
    "recovery": recovery.plan,
    "fairness": fairness.plan,
}

PUBLISHED: Mapping[str, Mapping[str, Schedule]] = {
    POSTGRES: {
        "ingest": Schedule(rounds=1, seconds=4.0),
        "receive": Schedule(rounds=1, seconds=15.0),
        "single": Schedule(rounds=3, seconds=1.5),
        "verify": Schedule(rounds=3),
        "process": Schedule(rounds=3, seconds=1.5),
        "latency": Schedule(rounds=2, seconds=2.0),
        "growth": Schedule(rounds=1, seconds=1.0),
        "crash": Schedule(rounds=1),
        "recovery": Schedule(rounds=3),
        "fairness": Schedule(rounds=2, seconds=3.0),
    },
    SQLITE: {
        "ingest": Schedule(rounds=1, seconds=3.0),
        "process": Schedule(rounds=2, seconds=1.5),
        "latency": Schedule(rounds=1, seconds=2.0),
    },
}

QUICK = Schedule(rounds=1, seconds=1.0)
