"""Latency: from POST until the handler is committed.

On PostgreSQL the end is the commit's own timestamp, which the server keeps for each transaction;
on SQLite it is the time at which the handler wrote its row. Both are on the clock of the sender.
"""

import json
import time
from contextlib import ExitStack
from functools import partial

from bench.contenders.interface import Place
from bench.deliveries import Deliveries
from bench.effects import OWN, Effects
from bench.field import LATENCY, OURS, Entry
from bench.generator import percentiles_ms
from bench.process import Failed, HandlerCall, send
from bench.results import Sample
from bench.run import Run, Step, must_be_good

RATE = 100.0
MOST_ROUNDS = 2
WARM_UP_SECONDS = 2.0
REST_SECONDS = 60.0
POLL_SECONDS = 0.02
BURST_SECONDS = 2.0
START_SECONDS = 6.0

STEADY, HALF = f"{RATE:g}/s", "half of the most"

_COMMITTED = "SELECT event_id, extract(epoch FROM pg_xact_commit_timestamp(xmin)) FROM bookings"
_WRITTEN = "SELECT event_id, (julianday(at) - 2440587.5) * 86400.0 FROM bookings"


def steps(run: Run) -> list[Step]:
    """Each round has every contender at a calm pace, and ours at half of what it can bear."""
    seconds = START_SECONDS + WARM_UP_SECONDS + 2 * run.options.seconds
    return [
        Step(
            f"latency {number + 1}: {entry.title}",
            seconds * (2 if entry.name == OURS else 1),
            partial(_step, run, entry, number),
        )
        for number in range(min(MOST_ROUNDS, run.options.rounds))
        for entry in run.entries(LATENCY)
    ]


def _step(run: Run, entry: Entry, number: int) -> list[Sample]:
    is_ours = entry.name == OURS
    with run.place(entry, is_announcing=True) as fresh, ExitStack() as running:
        place = fresh.having(is_working=is_ours)
        server = running.enter_context(HandlerCall(entry.module, "serve", place))
        server.wait_until_serving()
        if not is_ours:
            running.enter_context(HandlerCall(entry.module, "work", place))
        warm_up = run.order(place, run.warm_up, seconds=WARM_UP_SECONDS, rate=RATE)
        _wait_until_done(place, must_be_good(send(warm_up), server).acknowledged)
        samples = [Sample(entry.name, STEADY, number, _pace(run, place, run.unique, RATE))]
        if is_ours:
            values = _pace(run, place, run.half, _most(run, place) / 2)
            samples.append(Sample(entry.name, HALF, number, values))
    return samples


def _pace(run: Run, place: Place, deliveries: Deliveries, rate: float) -> dict[str, float]:
    """Send at a rate, and see when each event was done."""
    seconds = min(2 * run.options.seconds, len(deliveries.ids) / rate)
    sent, done = _follow(run, place, deliveries, seconds=seconds, rate=rate)
    p50, p99, most = percentiles_ms(end - start for start, end in zip(sent, done, strict=True))
    return {"rate": rate, "p50_ms": p50, "p99_ms": p99, "max_ms": most}


def _most(run: Run, place: Place) -> float:
    """What it bears from end to end: a burst, from its first request until the last is done."""
    sent, done = _follow(run, place, run.burst, seconds=BURST_SECONDS)
    return len(sent) / (max(done) - min(sent))


def _follow(
    run: Run, place: Place, deliveries: Deliveries, **how: float
) -> tuple[list[float], list[float]]:
    """Send, and wait until all is done; when each event was sent, and when it was done."""
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
        return effects.count(OWN)
    finally:
        effects.close()


def _wait_until_done(place: Place, count: int) -> None:
    effects = Effects(place.database)
    deadline = time.monotonic() + REST_SECONDS
    try:
        while (done := effects.count(OWN)) < count:
            if time.monotonic() > deadline:
                raise Failed(f"only {done} of {count} were done within {REST_SECONDS:g} s")
            time.sleep(POLL_SECONDS)  # effects are counted by looking: nobody tells of them
    finally:
        effects.close()
