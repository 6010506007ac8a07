"""Latency: from POST until the handler's transaction is committed.

A queue that is sent more than it can carry measures the length of the test, so each contender's
maximum is found first, and latency is measured well below it.

On PostgreSQL the end is the commit's own timestamp, which the server keeps for each transaction;
on SQLite it is the time at which the handler wrote its row. Both are on the clock of the sender.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from bench.contenders.interface import Place
from bench.deliveries import Deliveries
from bench.effects import INSERT, Effects
from bench.field import DBOS, LATENCY, OURS_OWN, OURS_SHARED, SQLITE, Entry
from bench.generator import percentiles_ms
from bench.process import Failed, HandlerCall, send
from bench.results import Sample
from bench.run import Run, Step, must_be_good

RATE = 100.0
MOST_LOAD = 0.75  # of the maximum: above it, a queue builds up by chance
MOST_ROUNDS = 2
WARM_UP_SECONDS = 1.0
BURST_SECONDS = 1.0
REST_SECONDS = 60.0
POLL_SECONDS = 0.02
START_SECONDS = 6.0

STEADY, HALF_OF_OWN = f"{RATE:g} a second", "half of its own maximum"
SHARES_OF_DBOS = {"a quarter of DBOS's maximum": 0.25, "half of DBOS's maximum": 0.5}

_COMMITTED = "SELECT event_id, extract(epoch FROM pg_xact_commit_timestamp(xmin)) FROM bookings"
_WRITTEN = "SELECT event_id, (julianday(at) - 2440587.5) * 86400.0 FROM bookings"


def steps(run: Run) -> list[Step]:
    """Plan the rounds: DBOS first, because its maximum sets rates for Onceward too."""
    rounds = min(MOST_ROUNDS, run.options.rounds)
    entries = sorted(run.entries(LATENCY), key=lambda entry: entry.name != DBOS)
    seconds = START_SECONDS + WARM_UP_SECONDS + BURST_SECONDS + 2 * run.options.seconds
    found = []
    for number in range(rounds):
        maxima: dict[str, float] = {}
        for entry in entries:
            label = f"latency {number + 1}: {entry.title}"
            found.append(Step(label, seconds, partial(_step, run, entry, number, maxima)))
    return found


def _step(run: Run, entry: Entry, number: int, maxima: dict[str, float]) -> list[Sample]:
    samples = []
    with _running(run, entry) as place:
        maximum = maxima[entry.name] = _maximum(run, place)
        skip = 0
        for case, rate in _rates(entry, maxima).items():
            values = _pace(run, place, rate, skip) | {"maximum": maximum}
            samples.append(Sample(entry.name, case, number, values))
            skip += int(rate * run.options.seconds) + 1
    return samples


@contextmanager
def _running(run: Run, entry: Entry) -> Iterator[Place]:
    """Start the receiver and the worker, one process each, and warm both up."""
    is_one_process = entry.module == "ours" and run.options.store == SQLITE
    with run.place(entry, is_announcing=True) as fresh, ExitStack() as running:
        place = fresh.having(is_working=is_one_process)
        server = running.enter_context(HandlerCall(entry.module, "serve", place))
        server.wait_until_serving()
        if not is_one_process:
            running.enter_context(HandlerCall(entry.module, "work", place))
        warm_up = run.order(place, run.warm_up, seconds=WARM_UP_SECONDS, rate=RATE)
        _wait_until_done(place, must_be_good(send(warm_up), server).acknowledged)
        yield place


def _rates(entry: Entry, maxima: dict[str, float]) -> dict[str, float]:
    """Return the rates to measure a contender at, all well below its maximum."""
    maximum = maxima[entry.name]
    rates = {STEADY: RATE, HALF_OF_OWN: maximum / 2}
    if DBOS in maxima and entry.name in {DBOS, OURS_OWN, OURS_SHARED}:
        rates |= {case: share * maxima[DBOS] for case, share in SHARES_OF_DBOS.items()}
    if entry.name == DBOS:
        del rates[HALF_OF_OWN]
    return {case: rate for case, rate in rates.items() if rate <= maximum * MOST_LOAD}


def _pace(run: Run, place: Place, rate: float, skip: int) -> dict[str, float]:
    """Send events at a rate and measure when each was committed."""
    sent, done = _follow(run, place, run.unique, rate=rate, skip=skip)
    p50, p99, most = percentiles_ms(end - start for start, end in zip(sent, done, strict=True))
    return {"rate": rate, "p50_ms": p50, "p99_ms": p99, "max_ms": most}


def _maximum(run: Run, place: Place) -> float:
    """Return the end-to-end rate of a burst, from its first request to its last commit."""
    sent, done = _follow(run, place, run.burst, seconds=BURST_SECONDS)
    return len(sent) / (max(done) - min(sent))


def _follow(
    run: Run, place: Place, deliveries: Deliveries, **how: float
) -> tuple[list[float], list[float]]:
    """Send, wait until all is done, and return when each event was sent and committed."""
    before = _count(place)
    journal = run.folder / "journal"
    found = send(run.order(place, deliveries, journal=str(journal), **how))
    _wait_until_done(place, before + found.acknowledged)
    is_sqlite = place.database.startswith("sqlite:")
    effects = Effects(place.database)
    done = dict(effects.rows(_WRITTEN if is_sqlite else _COMMITTED))
    effects.close()
    kept = json.loads(journal.read_text())
    return kept["sent_at"], [float(done[deliveries.ids[number]]) for number in kept["numbers"]]


def _count(place: Place) -> int:
    effects = Effects(place.database)
    try:
        return effects.count(INSERT)
    finally:
        effects.close()


def _wait_until_done(place: Place, count: int) -> None:
    effects = Effects(place.database)
    deadline = time.monotonic() + REST_SECONDS
    try:
        while (done := effects.count(INSERT)) < count:
            if time.monotonic() > deadline:
                raise Failed(f"only {done} of {count} were done within {REST_SECONDS:g} s")
            time.sleep(POLL_SECONDS)  # commits are counted by polling
    finally:
        effects.close()
