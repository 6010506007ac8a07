"""Ingest: from POST to a 2xx that says the event is kept, and kept once.

This machine's speed changes from one moment to the next. So all contenders are served at one time,
and a burst of a second goes to each in turn, under one load after the other.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from bench.contenders.interface import Place
from bench.deliveries import LOADS
from bench.field import INGEST, Entry
from bench.process import HandlerCall, send
from bench.results import Sample
from bench.run import WARM_UP_SECONDS, Run, Step, in_turn, must_be_good

START_SECONDS = 3.0
MOST_BURST_SECONDS = 1.0


@dataclass(frozen=True)
class _Served:
    """A contender that takes requests."""

    entry: Entry
    place: Place
    server: HandlerCall


def steps(run: Run) -> list[Step]:
    """Each round has every contender as often as the others, under every load."""
    contenders = len(run.entries(INGEST))
    a_turn = len(LOADS) * (_burst_seconds(run) + 0.3)
    seconds = contenders * (START_SECONDS + WARM_UP_SECONDS + _bursts(run) * a_turn)
    return [
        Step(f"ingest {number + 1}", seconds, partial(_round, run, number))
        for number in range(run.options.rounds)
    ]


def _bursts(run: Run) -> int:
    """Into how many bursts the seconds of a round are cut."""
    return max(1, round(run.options.seconds / MOST_BURST_SECONDS))


def _burst_seconds(run: Run) -> float:
    return run.options.seconds / _bursts(run)


def _round(run: Run, number: int) -> list[Sample]:
    samples = []
    with ExitStack() as serving:
        idle_between = {
            entry.name: serving.enter_context(_served(run, entry))
            for entry in run.entries(INGEST)
            if not entry.is_working
        }
        for burst, entry in in_turn(run.entries(INGEST), _bursts(run)):
            with ExitStack() as turn:
                served = idle_between.get(entry.name)
                if served is None:  # it would go on working while others are measured
                    served = turn.enter_context(_served(run, entry))
                samples += [
                    Sample(entry.name, load, number, _burst(run, served, load, burst))
                    for load in LOADS
                ]
    return samples


@contextmanager
def _served(run: Run, entry: Entry) -> Iterator[_Served]:
    with run.place(entry) as place, run.serving(entry, place) as server:
        yield _Served(entry, place, server)


def _burst(run: Run, served: _Served, load: str, burst: int) -> dict[str, float]:
    """Send for a moment what nobody has sent to this contender before, unless it is a storm."""
    deliveries = {"unique": run.unique, "half": run.half, "storm": run.storm}[load]
    seconds = _burst_seconds(run)
    count = len(deliveries.ids) // _bursts(run) or 1
    order = run.order(
        served.place,
        deliveries,
        load=load,
        seconds=seconds,
        skip=burst * count % len(deliveries.ids),
        count=count,
    )
    found = must_be_good(send(order), served.server)
    return {
        "rate": found.rate,
        "p50_ms": found.p50_ms,
        "p99_ms": found.p99_ms,
        "generator_us": found.own_cost_us,
    }
