"""Ingest: from POST to a 2xx that says the event is kept, and kept once."""

from functools import partial

from bench.deliveries import LOADS
from bench.field import INGEST, Entry
from bench.process import send
from bench.results import Sample
from bench.run import WARM_UP_SECONDS, Run, Step, must_be_good

START_SECONDS = 3.0


def steps(run: Run) -> list[Step]:
    """Each round has every contender once, under every load."""
    seconds = START_SECONDS + WARM_UP_SECONDS + len(LOADS) * (run.options.seconds + 0.5)
    return [
        Step(f"ingest {number + 1}: {entry.title}", seconds, partial(_step, run, entry, number))
        for number in range(run.options.rounds)
        for entry in run.entries(INGEST)
    ]


def _step(run: Run, entry: Entry, number: int) -> list[Sample]:
    files = {"unique": run.unique, "half": run.half, "storm": run.storm}
    samples = []
    with run.place(entry) as place, run.serving(entry, place) as server:
        for load, deliveries in files.items():
            found = must_be_good(send(run.order(place, deliveries, load=load)), server)
            values = {
                "rate": found.rate,
                "p50_ms": found.p50_ms,
                "p99_ms": found.p99_ms,
                "generator_us": found.own_cost_us,
            }
            samples.append(Sample(entry.name, load, number, values))
    return samples
