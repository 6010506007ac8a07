"""Crash: what is lost, doubled or forgotten when processes are killed with SIGKILL.

Receiving: the server and its store are killed under load, the store comes back, and the ids that
were acknowledged are looked for. Working: the worker is killed several times and started again,
and the effects are counted. Again: an id is sent once more after its job is done.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from bench.contenders.interface import Place
from bench.effects import INSERT, Effects
from bench.field import CRASH_RECEIVING, CRASH_WORKING, POSTGRES, Entry
from bench.process import Failed, HandlerCall, received, report, send, sending
from bench.results import Sample
from bench.run import Run, Step

RECEIVING, WORKING_CASE, AGAIN = "receiving", "working", "again"
LOAD_SECONDS = 1.5
LEASE_SECONDS = 10.0
KILLED_AT = (0.2, 0.4, 0.6)
JOBS = 2_000
AT_ONCE = 10
REST_SECONDS = 90.0
QUIET_SECONDS = 2.5 * LEASE_SECONDS
AGAIN_SECONDS = 4.0
POLL_SECONDS = 0.02


def steps(run: Run) -> list[Step]:
    """Each contender once in each case: what happens is counted, not timed."""
    if run.options.store != POSTGRES:
        return []
    return [
        *(
            Step(f"crash, receiving: {entry.title}", 6.0, partial(_receiving, run, entry))
            for entry in run.entries(CRASH_RECEIVING)
        ),
        *_waves(run, WORKING_CASE, 45.0, _working),
        *_waves(run, AGAIN, 15.0, _again),
    ]


def _waves(
    run: Run, case: str, seconds: float, act: Callable[[Run, Entry], list[Sample]]
) -> Iterator[Step]:
    """Plan a case for several contenders at once: effects are counted, not timed."""
    entries = run.entries(CRASH_WORKING)
    for first in range(0, len(entries), AT_ONCE):
        wave = _Wave(act, run, entries[first : first + AT_ONCE])
        for entry in wave.entries:
            label = f"crash, {case}: {entry.title}"
            yield Step(label, seconds / len(wave.entries), partial(wave.result, entry))


class _Wave:
    """Contenders that run at once; the first result asked for starts all of them."""

    def __init__(
        self, act: Callable[[Run, Entry], list[Sample]], run: Run, entries: Sequence[Entry]
    ) -> None:
        self.entries = entries
        self._act = act
        self._run = run
        self._results: dict[str, Future[list[Sample]]] = {}

    def result(self, entry: Entry) -> list[Sample]:
        """Return the samples of one contender. Raises Failed if this contender failed."""
        if not self._results:
            for each in self.entries:
                self._run.filled(each, _jobs(self._run, each))
            threads = ThreadPoolExecutor(len(self.entries))
            self._results = {
                each.name: threads.submit(self._act, self._run, each) for each in self.entries
            }
            threads.shutdown(wait=False)
        return self._results[entry.name].result()


def _jobs(run: Run, entry: Entry) -> int:
    return min(JOBS, run.jobs(entry))


def _receiving(run: Run, entry: Entry) -> list[Sample]:
    journal = run.folder / "journal"
    with run.place(entry) as place:
        with run.serving(entry, place) as server:
            order = run.order(place, run.unique, seconds=60.0, journal=str(journal))
            with sending(order) as generator:
                time.sleep(LOAD_SECONDS)  # of load, before the kill
                server.kill()
                _crash_store(run, place)
                report(generator)
        numbers = json.loads(journal.read_text())["numbers"]
        acknowledged = {run.unique.ids[number] for number in numbers}
        missing = acknowledged - received(entry.module, place)
    values = {"acknowledged": float(len(acknowledged)), "missing": float(len(missing))}
    return [Sample(entry.name, RECEIVING, 0, values)]


def _crash_store(run: Run, place: Place) -> None:
    if place.redis_port:
        redis = run.redis_servers[place.redis_port]
        redis.kill()
        redis.start()
    else:
        run.databases.crash()


def _working(run: Run, entry: Entry) -> list[Sample]:
    jobs = _jobs(run, entry)
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
        count = effects.count(INSERT)
        effects.close()
    if not count:
        raise Failed(f"{entry.name} did nothing at all")
    return [Sample(entry.name, AGAIN, 0, {"runs": float(count)})]
