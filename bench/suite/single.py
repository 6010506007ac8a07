"""Single: one request at a time on an idle service, beside a bare INSERT and COMMIT."""

import json
import subprocess
import sys
from functools import partial

from bench.bare_commit import create_table
from bench.processes import ROOT, send
from bench.registry import INGEST, ONCEWARD, POSTGRES, Contender
from bench.results import Sample
from bench.run import REQUESTS_PER_SECOND, Run, Schedule, Trial, require_success

BARE = "bare"
CASE = "one at a time"
START_SECONDS = 3.0


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan one trial a round: both sides, one after the other, in the same database."""
    if run.options.store != POSTGRES:
        return []
    return [
        Trial(
            f"single, round {number + 1}",
            START_SECONDS + 2 * schedule.seconds,
            partial(_run_round, run, contender, schedule, number),
        )
        for number in range(schedule.rounds)
        for contender in run.contenders(INGEST)
        if contender.name == ONCEWARD
    ]


def _run_round(run: Run, contender: Contender, schedule: Schedule, number: int) -> list[Sample]:
    with run.deployed(contender) as config, run.serving(contender, config) as server:
        create_table(config.database)
        deliveries = run.deliveries(REQUESTS_PER_SECOND)
        load_plan = run.load_plan(config, deliveries, schedule.seconds, connections=1)
        report = require_success(send(load_plan), server)
        onceward = {"p50_ms": report.p50_ms, "p99_ms": report.p99_ms}
        command = [sys.executable, "-m", "bench.bare_commit", config.database]
        bare = json.loads(subprocess.check_output([*command, str(schedule.seconds)], cwd=ROOT))
    return [Sample(ONCEWARD, CASE, number, onceward), Sample(BARE, CASE, number, bare)]
