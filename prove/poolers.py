"""The service behind pgbouncer: the workload passes, or the start is refused by name."""

import re

from prove.workbench import Workbench
from support.ledger_checker import Violation
from support.pgbouncer import Pgbouncer
from support.processes import StartupFailed

EVENTS_PER_SECOND = 200
EVENTS = 300
MODES = ("session", "transaction")
MUST_WORK = "session"
REFUSED_BY_NAME = re.compile(r"pgbouncer|pooler|transaction pooling|pool_mode", re.IGNORECASE)


def run_behind_poolers(bench: Workbench) -> None:
    """Run the workload through pgbouncer, in each of its modes."""
    with bench.stage("poolers"), bench.server() as server:
        for number, mode in enumerate(MODES):
            url = server.create()
            with Pgbouncer(server.postgres, mode) as pooler:
                _run_behind(bench, pooler.url(url), url, mode)
            bench.progress("poolers", len(MODES))(number + 1)


def _run_behind(bench: Workbench, url: str, direct_url: str, mode: str) -> None:
    try:
        with bench.experiment(f"pgbouncer {mode}", url, direct_url=direct_url) as experiment:
            experiment.send(10**6, 10**6 / EVENTS_PER_SECOND)
            experiment.wait_until_recovered(EVENTS)
            experiment.drain()
            experiment.tally["workloads behind pgbouncer"] += 1
    except StartupFailed as failure:
        reason = _last_line(str(failure))
        if mode == MUST_WORK or not REFUSED_BY_NAME.search(reason):
            violation = Violation.NOT_RECOVERED
            bench.add_finding("poolers", violation, f"pgbouncer in {mode} mode: {reason}")
        else:
            bench.result.notes.append(f"pgbouncer in {mode} mode is refused: {reason}")
            bench.result.tally["refused starts behind pgbouncer"] += 1


def _last_line(log: str) -> str:
    return log.strip().splitlines()[-1]
