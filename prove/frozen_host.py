"""A database host that vanishes with statements in flight, and returns.

A proxy passes nothing on and closes nothing, so that only the service's own limits of time help.
When it returns, it either delivers what it held, as after an interruption of the network, or cuts
every connection, as after a restart of the host.
"""

import subprocess
import time
from contextlib import suppress

from prove.experiment import Experiment
from prove.workbench import Workbench
from support.ledger_checker import Violation
from support.processes import Process
from support.proxy import Proxy

EVENTS_PER_SECOND = 200
SHORT_SECONDS = 2.0
"""Shorter than any limit: every statement is answered late."""

LONG_SECONDS = 15.0
"""Longer than the service waits for a response: every connection is given up."""

DRAIN_SECONDS = 1.0
REPORT_LIMIT_SECONDS = 10.0
END_LIMIT_SECONDS = 20.0
RECOVERY_LIMIT_SECONDS = 10.0


def freeze_host(bench: Workbench) -> None:
    """Freeze and unfreeze the host of the database under load."""
    count = bench.plan.freezes
    progress = bench.progress("frozen host", count)
    with bench.stage("frozen host"), bench.server() as server:
        url = server.create()
        with (
            Proxy(url) as proxy,
            bench.experiment(
                "frozen", proxy.url, direct_url=url, drain_seconds=DRAIN_SECONDS
            ) as experiment,
        ):
            for number in range(count):
                experiment.send(10**6, 10**6 / EVENTS_PER_SECOND)
                experiment.wait_until_recovered()
                _freeze(experiment, proxy, is_long=number % 2 == 1)
                progress(number + 1)
            experiment.drain()


def _freeze(experiment: Experiment, proxy: Proxy, *, is_long: bool) -> None:
    """Freeze the host: for a moment, or until every connection is given up and cut."""
    fleet = experiment.fleet
    ended = [0, fleet.worker_slots[0]] if is_long else []
    frozen_at = time.monotonic()
    proxy.freeze()
    try:
        _expect_reported(experiment)
        _terminate(experiment, [fleet.processes[slot] for slot in ended])
        seconds = LONG_SECONDS if is_long else SHORT_SECONDS
        time.sleep(max(0.0, frozen_at + seconds - time.monotonic()))  # how long it lasts
    finally:
        if is_long:
            proxy.cut()
        conditions = experiment.service_conditions()
        proxy.thaw()
    experiment.tally["frozen hosts"] += 1
    experiment.tally["frozen hosts that returned without their connections"] += is_long
    name = "a long freeze" if is_long else "a short freeze"
    experiment.watch_recovery(name, conditions, RECOVERY_LIMIT_SECONDS)
    fleet.kill(*ended)


def _expect_reported(experiment: Experiment) -> None:
    """Wait until no receiver says that it is ready."""
    started, receivers = time.monotonic(), experiment.fleet.receivers
    is_reported = experiment.expect(
        lambda: not any(receiver.is_ready() for receiver in receivers),
        "/readyz reports the freeze",
        REPORT_LIMIT_SECONDS,
        otherwise=Violation.NOT_REPORTED,
    )
    if is_reported:
        seconds = time.monotonic() - started
        experiment.add_delay("a freeze reported by /readyz", seconds, REPORT_LIMIT_SECONDS)


def _terminate(experiment: Experiment, processes: list[Process]) -> None:
    """Ask processes to end while the host is frozen, and time how long they take."""
    started = time.monotonic()
    for process in processes:
        process.terminate()
    for process in processes:
        left = started + END_LIMIT_SECONDS - time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, left))
        if process.running:
            detail = f"{END_LIMIT_SECONDS:g} s after SIGTERM, while the host was frozen"
            experiment.findings.add(Violation.NOT_ENDED, detail)
            process.kill()
        else:
            seconds = time.monotonic() - started
            experiment.add_delay("end of a process by SIGTERM", seconds, END_LIMIT_SECONDS)
