"""Process: jobs a second of one worker process, each with one statement in its transaction.

The clock starts a moment after the first commit, when connections, plans and batch sizes are warm.
"""

import time
from functools import partial

from bench.contenders.interface import Place
from bench.effects import WORKLOADS, Effects
from bench.field import PROCESS, Entry
from bench.process import Failed, HandlerCall
from bench.results import Sample
from bench.run import Run, Step, in_turn

POLL_SECONDS = 0.05
FIRST_SECONDS = 30.0
WARM_UP_SECONDS = 0.5
START_SECONDS = 2.5


def steps(run: Run) -> list[Step]:
    """Plan the rounds: every contender once under each workload, in alternating order."""
    seconds = START_SECONDS + WARM_UP_SECONDS + run.options.cap_seconds
    return [
        Step(
            f"process {number + 1}: {entry.title}, {workload}",
            seconds,
            partial(_step, run, entry, workload, number),
        )
        for workload in WORKLOADS
        for number, entry in in_turn(run.entries(PROCESS), run.options.rounds)
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
    worker: HandlerCall, place: Place, *, total: int, cap_seconds: float
) -> tuple[int, float]:
    """Count commits until all jobs are done or the cap is reached; return jobs and seconds."""
    effects = Effects(place.database)
    began = time.perf_counter()
    first: tuple[float, int] | None = None
    warm: tuple[float, int] | None = None
    try:
        while True:
            worker.check()
            count, now = effects.count(place.workload), time.perf_counter()
            if first is None:
                first = (now, count) if count else None
                if count >= total:
                    raise Failed(f"{total} jobs are too few: all were done at the first look")
                if now - began > FIRST_SECONDS:
                    raise Failed(f"nothing was done within {FIRST_SECONDS:g} s:\n{worker.log}")
            elif warm is None and now - first[0] >= WARM_UP_SECONDS and count < total:
                warm = now, count
            since = warm or first
            if since is not None and (count >= total or now - since[0] > cap_seconds):
                return count - since[1], now - since[0]
            time.sleep(POLL_SECONDS)  # counting costs the database too
    finally:
        effects.close()
