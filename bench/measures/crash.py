"""Crash: what is lost, doubled or forgotten when processes are killed with SIGKILL.

Receiving: the server and its store are killed under load, the store comes back, and the ids that
were acknowledged are looked for. Working: the worker is killed several times and started again,
and the effects are counted. Again: an id is sent once more after its job is done.
"""

import json
import time
from functools import partial

from bench.contenders.interface import Place
from bench.effects import OWN, Effects
from bench.field import EMPTY, INGEST, LATENCY, POSTGRES, PROCESS, WORKING, Entry
from bench.process import Failed, HandlerCall, received, report, send, sending
from bench.results import Sample
from bench.run import Run, Step

RECEIVING, WORKING_CASE, AGAIN = "receiving", "working", "again"
LOAD_SECONDS = 1.5
LEASE_SECONDS = 10.0
KILLED_AT = (0.2, 0.4, 0.6)
JOBS = 2_000
REST_SECONDS = 90.0
QUIET_SECONDS = 4 * LEASE_SECONDS
AGAIN_SECONDS = 4.0
POLL_SECONDS = 0.02


def steps(run: Run) -> list[Step]:
    """Each contender once in each case: what happens is counted, not timed."""
    if run.options.store != POSTGRES:
        return []
    plans = (
        (RECEIVING, INGEST, 8.0, _receiving),
        (WORKING_CASE, PROCESS, 35.0, _working),
        (AGAIN, LATENCY, 12.0, _again),
    )
    return [
        Step(f"crash, {case}: {entry.title}", seconds, partial(act, run, entry))
        for case, measure, seconds, act in plans
        for entry in run.entries(measure)
        if entry.name not in {EMPTY, WORKING, "handwritten-1", "handwritten-16"}
    ]


def _receiving(run: Run, entry: Entry) -> list[Sample]:
    journal = run.folder / "journal"
    with run.place(entry) as place:
        with run.serving(entry, place) as server:
            order = run.order(place, run.unique, seconds=60.0, journal=str(journal))
            with sending(order) as generator:
                time.sleep(LOAD_SECONDS)  # of load, before the kill
                server.kill()
                _crash_store(run, entry)
                report(generator)
        numbers = json.loads(journal.read_text())["numbers"]
        acknowledged = {run.unique.ids[number] for number in numbers}
        missing = acknowledged - received(entry.module, place)
    values = {"acknowledged": float(len(acknowledged)), "missing": float(len(missing))}
    return [Sample(entry.name, RECEIVING, 0, values)]


def _crash_store(run: Run, entry: Entry) -> None:
    if entry.uses_redis:
        assert run.redis is not None, "started with the place"
        run.redis.kill()
        run.redis.start()
    else:
        run.databases.crash()


def _working(run: Run, entry: Entry) -> list[Sample]:
    jobs = min(JOBS, run.jobs(entry))
    with run.place(entry, run.filled(entry, jobs), lease_seconds=LEASE_SECONDS) as place:
        if entry.uses_redis:
            run.fill(entry, place, jobs)
        for share in KILLED_AT:
            with HandlerCall(entry.module, "work", place) as worker:
                _wait_for(place, worker, int(share * jobs), LEASE_SECONDS * 2)
        with HandlerCall(entry.module, "work", place) as worker:
            _wait_for(place, worker, jobs, REST_SECONDS)
        effects = Effects(place.database)
        runs = effects.by_event()
        effects.close()
    doubled = sum(count - 1 for count in runs.values())
    values = {"jobs": float(jobs), "doubled": float(doubled), "missing": float(jobs - len(runs))}
    return [Sample(entry.name, WORKING_CASE, 0, values)]


def _wait_for(place: Place, worker: HandlerCall, events: int, seconds: float) -> None:
    """Wait until so many events had an effect, or nothing happens any more."""
    effects = Effects(place.database)
    deadline = time.monotonic() + seconds
    moved_at, seen = time.monotonic(), -1
    try:
        while (done := len(effects.by_event())) < events and time.monotonic() < deadline:
            worker.check()
            if done != seen:
                moved_at, seen = time.monotonic(), done
            if time.monotonic() - moved_at > QUIET_SECONDS:
                return
            time.sleep(POLL_SECONDS)  # effects are counted by looking: nobody tells of them
    finally:
        effects.close()


def _again(run: Run, entry: Entry) -> list[Sample]:
    with run.place(entry, is_announcing=True) as place:
        once = run.order(place, run.storm, connections=1, count=1, seconds=5.0)
        with (
            HandlerCall(entry.module, "serve", place) as server,
            HandlerCall(entry.module, "work", place) as worker,
        ):
            server.wait_until_serving()
            send(once)
            _wait_for(place, worker, 1, AGAIN_SECONDS * 3)
            time.sleep(AGAIN_SECONDS / 2)  # until its job is over, not only its effect
            send(once)
            time.sleep(AGAIN_SECONDS)  # time enough to do it again: that nothing comes has no sign
        effects = Effects(place.database)
        count = effects.count(OWN)
        effects.close()
    if not count:
        raise Failed(f"{entry.name} did nothing at all")
    return [Sample(entry.name, AGAIN, 0, {"runs": float(count)})]
