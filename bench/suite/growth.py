"""Growth: Onceward on a ledger with millions of events, beside an empty ledger.

The speed of a shared machine changes from second to second. Receivers on both ledgers therefore run
at the same time and get short bursts in alternation. Workers then run some thousand jobs on each
ledger, in alternation too.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from bench.contenders.interface import ContenderConfig
from bench.deliveries import Deliveries, ordered_ids, prepare, random_ids
from bench.processes import ContenderProcess, free_port, send
from bench.registry import BY_NAME, ONCEWARD_SHARED, POSTGRES
from bench.results import Sample
from bench.run import REQUESTS_PER_SECOND, Run, Schedule, Trial, alternate, require_success
from bench.seed import ORDERED, seed, seed_queued
from bench.suite.process import measure_rate
from bench.workloads import CommittedWork

CONTENDER = BY_NAME[ONCEWARD_SHARED]
# A round begins with a checkpoint, after which the first write to a page is logged whole: with
# random ids that is nearly every write for some seconds.
RECEIVE_BURSTS = 6
WORK_BURSTS = 3
JOBS_PER_BURST = 8_000
SEED_SECONDS_PER_MILLION = 30.0
ROUND_SECONDS = 45.0

Sides = Mapping[str, ContenderConfig]
"""The empty ledger and the large one, by their case."""


@dataclass(frozen=True)
class Ledger:
    """The size and the kind of a seeded ledger."""

    id_order: str
    events: int
    is_backlog: bool = False

    @property
    def case(self) -> str:
        """The name of the large side in the results."""
        kind = "queued" if self.is_backlog else "done"
        return f"{self.events:,} {kind}, {self.id_order} ids"

    @property
    def empty_case(self) -> str:
        """The name of the empty side in the results."""
        return f"empty, beside {self.case}"


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan seeding and rounds for every ledger, on PostgreSQL only."""
    prefixes = tuple(run.options.contenders)
    is_selected = not prefixes or CONTENDER.name.startswith(prefixes)
    if run.options.store != POSTGRES or not is_selected:
        return []
    return _Growth(run, schedule).plan()


class _Growth:
    """The large database, which stays over several trials."""

    def __init__(self, run: Run, schedule: Schedule) -> None:
        self._run = run
        self._schedule = schedule
        self._databases: dict[tuple[str, bool], str] = {}
        self._bursts = 0

    def plan(self) -> list[Trial]:
        """Plan the sizes from small to large, each seeded on top of the one before."""
        options = self._run.options
        trials = []
        for id_order in options.growth_ids:
            size = 0
            for events in options.growth_events:
                trials += self._plan_ledger(Ledger(id_order, events), events - size)
                size = events
        if options.backlog_events:
            backlog = Ledger(ORDERED, options.backlog_events, is_backlog=True)
            trials += self._plan_ledger(backlog, backlog.events)
        return trials

    def _plan_ledger(self, ledger: Ledger, new_events: int) -> list[Trial]:
        seed_seconds = new_events / 1_000_000 * SEED_SECONDS_PER_MILLION
        return [
            Trial(f"growth: seed {ledger.case}", seed_seconds, partial(self._seed, ledger)),
            *(
                Trial(
                    f"growth, round {number + 1}: {ledger.case}",
                    ROUND_SECONDS,
                    partial(self._run_round, ledger, number),
                )
                for number in range(self._schedule.rounds)
            ),
        ]

    def _seed(self, ledger: Ledger) -> list[Sample]:
        key = ledger.id_order, ledger.is_backlog
        databases = self._run.databases
        if key not in self._databases:
            for old in self._databases.values():
                databases.drop(old)
            database = databases.copy(self._run.template(CONTENDER))
            self._databases = {key: database}
            config = ContenderConfig(database, free_port())
            with ContenderProcess(CONTENDER.module, "serve", config) as server:
                server.wait_until_serving()  # registers the source and the handler
        database = self._databases[key]
        seed(database, ledger.events, id_order=ledger.id_order, is_done=not ledger.is_backlog)
        databases.settle(database)
        return []

    def _run_round(self, ledger: Ledger, number: int) -> list[Sample]:
        database = self._databases[ledger.id_order, ledger.is_backlog]
        with self._run.deployed(CONTENDER) as empty:
            large = empty.with_changes(database=database, port=free_port())
            sides = {ledger.empty_case: empty, ledger.case: large}
            samples = [*self._receive(sides, ledger), *self._work(sides, ledger)]
        return [Sample(CONTENDER.name, case, number, values) for case, values in samples]

    def _receive(self, sides: Sides, ledger: Ledger) -> Iterator[tuple[str, dict[str, float]]]:
        run = self._run
        with ExitStack() as stack:
            servers = {
                case: stack.enter_context(run.serving(CONTENDER, config))
                for case, config in sides.items()
            }
            for config in sides.values():
                run.databases.checkpoint(config.database)
            for _, case in alternate(list(sides), RECEIVE_BURSTS):
                deliveries = self._new_deliveries(ledger)
                load_plan = run.load_plan(sides[case], deliveries, self._schedule.seconds)
                report = require_success(send(load_plan), servers[case])
                yield case, {"ingest_rate": report.rate}
            for case, server in servers.items():
                memory = server.memory()
                yield case, {"receiver_mb": memory.now_mb, "receiver_peak_mb": memory.peak_mb}

    def _new_deliveries(self, ledger: Ledger) -> Deliveries:
        """Prepare events that neither ledger has."""
        self._bursts += 1
        count = int(REQUESTS_PER_SECOND / 2 * self._schedule.seconds)
        ids = (
            ordered_ids(count, first=10_000_000_000 * self._bursts)
            if ledger.id_order == ORDERED
            else random_ids(count, seed=1_000_000 + self._bursts)
        )
        return prepare(self._run.folder / "growth", ids)

    def _work(self, sides: Sides, ledger: Ledger) -> Iterator[tuple[str, dict[str, float]]]:
        run = self._run
        for case, config in sides.items():
            if not (ledger.is_backlog and case == ledger.case):
                jobs = WORK_BURSTS * JOBS_PER_BURST
                seed_queued(config.database, jobs, id_order=ledger.id_order)
            run.databases.checkpoint(config.database)
        for _, case in alternate(list(sides), WORK_BURSTS):
            config = sides[case]
            with CommittedWork.open(config.database) as committed:
                committed.clear()
            with ContenderProcess(CONTENDER.module, "work", config) as worker:
                rate = measure_rate(worker, config, jobs=JOBS_PER_BURST, max_seconds=10.0)
                memory = worker.memory()
                worker.stop()
            yield (
                case,
                {
                    "process_rate": rate,
                    "worker_mb": memory.now_mb,
                    "worker_peak_mb": memory.peak_mb,
                },
            )
