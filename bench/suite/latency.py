"""Latency: from POST until the handler's transaction is committed.

Above its maximum rate a queue only grows, and its latency is the length of the test. Each
contender's maximum is therefore found, and its latency counts only below it.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from bench.checks import check_work
from bench.contenders.interface import ContenderConfig
from bench.load_generator import percentiles_ms
from bench.processes import ContenderProcess, TrialFailed, send
from bench.registry import DBOS, LATENCY, ONCEWARD_OWN, ONCEWARD_SHARED, SQLITE, Contender
from bench.results import Sample
from bench.run import WARM_UP_REQUESTS, Run, Schedule, Trial, require_success, round_order
from bench.workloads import INSERT, CommittedWork

STEADY_RATE = 100.0
MAX_LOAD = 0.75  # of the maximum rate; above it, a queue builds up by chance
P99_SAMPLES = 1_000
"""Below so many samples, a 99th percentile is one of a few of the longest, and is not shown."""
SHORT_SECONDS = 4.0
"""How long a rate is measured that gives enough samples sooner, or would take too long for them."""
REQUESTS = 60_000
WARM_UP_SECONDS = 1.0
BURST_SECONDS = 1.0
START_SECONDS = 5.0
DRAIN_SECONDS = 60.0
POLL_SECONDS = 0.02

STEADY, HALF_OF_OWN = f"{STEADY_RATE:g} events/s", "half of its own maximum"
SHARES_OF_DBOS = {"a quarter of DBOS's maximum": 0.25, "half of DBOS's maximum": 0.5}
CASES = (STEADY, *SHARES_OF_DBOS, HALF_OF_OWN)
BESIDE_DBOS = (DBOS, ONCEWARD_OWN, ONCEWARD_SHARED)


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan every contender once a round, in alternating order.

    DBOS is always the first, because its maximum sets rates for others.
    """
    contenders = run.contenders(LATENCY)
    first = [contender for contender in contenders if contender.name == DBOS]
    others = [contender for contender in contenders if contender.name != DBOS]
    trials = []
    for number in range(schedule.rounds):
        maxima: dict[str, float] = {}
        trials += [
            Trial(
                f"latency, round {number + 1}: {contender.title}",
                _trial_seconds(contender, schedule),
                partial(_run_trial, run, contender, schedule, number, maxima),
            )
            for contender in (*first, *round_order(others, number))
        ]
    return trials


def _trial_seconds(contender: Contender, schedule: Schedule) -> float:
    """Return about how long a trial takes: 100/s, which DBOS does not reach, and other rates."""
    rates = len(SHARES_OF_DBOS) if contender.name in BESIDE_DBOS else 0
    measured = rates * min(SHORT_SECONDS, schedule.seconds)
    if contender.name != DBOS:
        measured += schedule.seconds + min(SHORT_SECONDS, schedule.seconds)
    return START_SECONDS + WARM_UP_SECONDS + BURST_SECONDS + measured


def _run_trial(
    run: Run, contender: Contender, schedule: Schedule, number: int, maxima: dict[str, float]
) -> list[Sample]:
    with _running(run, contender) as config:
        probe = _Probe(run, config)
        measured: dict[str, Mapping[str, float]] = {}
        if contender.name != DBOS:  # cannot carry 100/s
            # Before the burst, which leaves dead rows and dirty pages behind.
            measured[STEADY] = probe.measure(STEADY_RATE, schedule.seconds)
        maxima[contender.name] = probe.find_maximum()
        rates = _rates(contender, maxima)
        for case, rate in rates.items():
            if case not in measured:
                measured[case] = probe.measure(rate, _seconds(rate, schedule.seconds))
    return [Sample(contender.name, case, number, dict(measured[case])) for case in rates]


def _seconds(rate: float, longest: float) -> float:
    """Return how long to measure a rate: until p99 has its samples, if that is not too long."""
    enough = P99_SAMPLES / rate
    is_too_long = enough > longest
    return min(longest, SHORT_SECONDS if is_too_long else max(SHORT_SECONDS, 1.05 * enough))


@contextmanager
def _running(run: Run, contender: Contender) -> Iterator[ContenderConfig]:
    """Run the receiver and the worker, warmed up, in a process each unless it is one process.

    Their work is checked after they were killed. Raises TrialFailed.
    """
    is_one_process = contender.has_worker or (contender.is_onceward and run.options.store == SQLITE)
    with run.deployed(contender, has_notifications=True) as deployed:
        config = deployed.with_changes(has_worker=is_one_process)
        with ExitStack() as stack:
            server = stack.enter_context(ContenderProcess(contender.module, "serve", config))
            server.wait_until_serving()
            if not is_one_process:
                stack.enter_context(ContenderProcess(contender.module, "work", config))
            _warm_up(run, config, server)
            yield config
        check_work(contender, config)


def _warm_up(run: Run, config: ContenderConfig, server: ContenderProcess) -> None:
    deliveries = run.deliveries(WARM_UP_REQUESTS)
    warm_up = run.load_plan(config, deliveries, WARM_UP_SECONDS, rate=STEADY_RATE)
    report = require_success(send(warm_up), server)
    _wait_for_commits(config, deliveries.ids[: report.acknowledged])


def _rates(contender: Contender, maxima: dict[str, float]) -> dict[str, float]:
    """Return the rates to measure a contender at, all below its maximum."""
    maximum = maxima[contender.name]
    rates = {STEADY: STEADY_RATE, HALF_OF_OWN: maximum / 2}
    if DBOS in maxima and contender.name in BESIDE_DBOS:
        rates |= {case: share * maxima[DBOS] for case, share in SHARES_OF_DBOS.items()}
    if contender.name == DBOS:
        del rates[HALF_OF_OWN]  # measured as half of DBOS's maximum
    return {case: rate for case, rate in rates.items() if rate <= maximum * MAX_LOAD}


@dataclass
class _Probe:
    """Sends events to a running contender and reads when their handlers committed."""

    run: Run
    config: ContenderConfig
    _sent: int = 0

    def find_maximum(self) -> float:
        """Return the end-to-end rate of a burst, from its first request to its last commit."""
        sent_at, committed_at = self._send(BURST_SECONDS, rate=None)
        return len(sent_at) / (max(committed_at) - min(sent_at))

    def measure(self, rate: float, seconds: float) -> dict[str, float]:
        """Send events at a rate and return the percentiles of their latency; p99 if it has one."""
        sent_at, committed_at = self._send(seconds, rate)
        p50, p99, longest = percentiles_ms(
            end - start for start, end in zip(sent_at, committed_at, strict=True)
        )
        values = {"rate": rate, "p50_ms": p50, "max_ms": longest}
        return values | ({"p99_ms": p99} if len(sent_at) >= P99_SAMPLES else {})

    def _send(self, seconds: float, rate: float | None) -> tuple[list[float], list[float]]:
        """Send new events, wait for their commits, and return both times of each event."""
        deliveries = self.run.deliveries(REQUESTS)
        journal = self.run.folder / "journal"
        plan = self.run.load_plan(
            self.config, deliveries, seconds, rate=rate, skip=self._sent, journal=str(journal)
        )
        report = send(plan)
        if rate is not None and report.rejected:
            raise TrialFailed(f"requests were rejected below the maximum: {report.statuses}")
        self._sent += sum(report.statuses.values())
        acknowledged = json.loads(journal.read_text())
        ids = [deliveries.ids[number] for number in acknowledged["numbers"]]
        times = _wait_for_commits(self.config, ids)
        return acknowledged["sent_at"], [times[event_id] for event_id in ids]


def _wait_for_commits(config: ContenderConfig, ids: Sequence[str]) -> dict[str, float]:
    """Wait until the handlers of all events committed, and return when. Raises TrialFailed."""
    deadline = time.monotonic() + DRAIN_SECONDS
    with CommittedWork.open(config.database) as committed:
        while True:
            count = committed.count(INSERT)
            if count >= len(ids):  # cheaper than to read all times again and again
                times = committed.commit_times()
                if times.keys() >= set(ids):
                    return times
            if time.monotonic() > deadline:
                raise TrialFailed(f"{count} commits, not all {len(ids)} in {DRAIN_SECONDS:g} s")
            time.sleep(POLL_SECONDS)  # the contenders do not report commits
