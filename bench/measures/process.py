"""Process: jobs a second of one worker process, each with one statement in its transaction.

The rate is from the first committed row that is seen to the last: what a worker needs to start
is left out, for everybody.
"""

import time
from functools import partial

from bench.contenders.interface import Place
from bench.effects import WORKLOADS, Effects
from bench.field import PROCESS, Entry
from bench.process import Failed, HandlerCall
from bench.results import Sample
from bench.run import Run, Step

POLL_SECONDS = 0.05
FIRST_SECONDS = 30.0
USUAL_SECONDS = 10.0


def steps(run: Run) -> list[Step]:
    """Each round has every contender once, under both workloads."""
    return [
        Step(
            f"process {number + 1}: {entry.title}, {workload} rows",
            USUAL_SECONDS,
            partial(_step, run, entry, workload, number),
        )
        for number in range(run.options.rounds)
        for workload in WORKLOADS
        for entry in run.entries(PROCESS)
    ]


def _step(run: Run, entry: Entry, workload: str, number: int) -> list[Sample]:
    jobs = run.jobs(entry)
    with run.place(entry, run.filled(entry, jobs), workload=workload) as place:
        if entry.uses_redis:
            run.fill(entry, place, jobs)
        with HandlerCall(entry.module, "work", place) as worker:
            done, seconds = watch(worker, place, total=jobs, cap_seconds=run.options.cap_seconds)
    return [Sample(entry.name, workload, number, {"rate": done / seconds, "done": float(done)})]


def watch(
    worker: HandlerCall, place: Place, *, total: int, cap_seconds: float, before: int = 0
) -> tuple[int, float]:
    """Wait until all is done, or for as long as the cap; how much was done, in how many seconds."""
    effects = Effects(place.database)
    started = time.perf_counter()
    first: tuple[float, int] | None = None
    try:
        while True:
            worker.check()
            count, now = effects.count(place.workload), time.perf_counter()
            if count > before and first is None:
                first = now, count
            if first is None and now - started > FIRST_SECONDS:
                raise Failed(f"nothing was done within {FIRST_SECONDS:g} s:\n{worker.log}")
            if first is not None and (count >= total or now - first[0] > cap_seconds):
                return count - first[1], now - first[0]
            time.sleep(POLL_SECONDS)  # a sample now and then: counting costs the database too
    finally:
        effects.close()
