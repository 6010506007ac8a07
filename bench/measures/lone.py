"""Lone: one request at a time on an idle service, beside a bare INSERT and COMMIT."""

import json
import subprocess
import sys
from functools import partial

from bench.commit import make_table
from bench.field import INGEST, OURS, Entry
from bench.process import ROOT, send
from bench.results import Sample
from bench.run import Run, Step, must_be_good

BARE = "bare"
CASE = "lone"
START_SECONDS = 3.0


def steps(run: Run) -> list[Step]:
    """Each round has both, one right after the other, in the same database."""
    seconds = START_SECONDS + 2 * run.options.seconds
    return [
        Step(f"lone {number + 1}", seconds, partial(_step, run, entry, number))
        for number in range(run.options.rounds)
        for entry in run.entries(INGEST)
        if entry.name == OURS and run.options.store == "postgres"
    ]


def _step(run: Run, entry: Entry, number: int) -> list[Sample]:
    with run.place(entry) as place, run.serving(entry, place) as server:
        make_table(place.database)
        order = run.order(place, run.unique, connections=1)
        found = must_be_good(send(order), server)
        ours = {"p50_ms": found.p50_ms, "p99_ms": found.p99_ms}
        bare = json.loads(
            subprocess.check_output(
                [sys.executable, "-m", "bench.commit", place.database, str(run.options.seconds)],
                cwd=ROOT,
            )
        )
    return [Sample(OURS, CASE, number, ours), Sample(BARE, CASE, number, bare)]
