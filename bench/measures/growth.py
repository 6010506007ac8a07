"""Growth: ours on a ledger with millions of events, beside an empty one in the same seconds.

This machine's speed changes from one moment to the next. So both ledgers are served at one time,
and short bursts go to the one and to the other in turn, first to either as often; then workers work
off some thousand jobs on each, in turn as well.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from bench.contenders.interface import Place
from bench.deliveries import Deliveries, ordered_ids, prepare, random_ids
from bench.effects import Effects
from bench.field import FIELD, OURS, OURS_SHARED, POSTGRES, Entry
from bench.fill import ORDERED, ORDERS, fill, queue
from bench.measures.process import watch
from bench.process import HandlerCall, free_port, send
from bench.results import Sample
from bench.run import PREPARED_A_SECOND, Run, Step, in_turn, must_be_good

ENTRY: Entry = next(entry for entry in FIELD if entry.name == OURS_SHARED)
MOST_ROUNDS = 3  # at the size that counts
FEW_ROUNDS = 1  # at the others
# In a round, to each. After a checkpoint, which every round begins with, the first write to a page
# is logged whole: with random ids that is nearly every write for some seconds.
RECEIVING_BURSTS = 8
BURST_SECONDS = 1.0
WORKING_BURSTS = 4
JOBS = 8_000  # in a burst
FILL_SECONDS_A_MILLION = 25.0
ROUND_SECONDS = 60.0

Sides = Mapping[str, Place]
"""The empty ledger and the filled one, by their cases."""


@dataclass(frozen=True)
class Ledger:
    """What a database is filled with."""

    order: str
    events: int
    is_backlog: bool = False

    @property
    def case(self) -> str:
        """Its name in the results."""
        kind = "queued" if self.is_backlog else "done"
        return f"{self.events:,} {kind}, {self.order} ids"


class Growth:
    """Keeps the large databases over the steps."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._databases: dict[str, str] = {}
        self._sent = 0

    def steps(self) -> list[Step]:
        """Fill, measure empty and filled in turn, fill more, measure again."""
        options = self._run.options
        found = []
        for order in ORDERS:
            size = 0
            for events in options.growth_events:
                found += self._steps(Ledger(order, events), events - size)
                size = events
        if options.backlog_events:
            backlog = Ledger(ORDERED, options.backlog_events, is_backlog=True)
            found += self._steps(backlog, backlog.events)
        return found

    def _steps(self, ledger: Ledger, more: int) -> list[Step]:
        fill_seconds = more / 1_000_000 * FILL_SECONDS_A_MILLION
        is_largest = ledger.events == max(self._run.options.growth_events)
        rounds = min(MOST_ROUNDS if is_largest else FEW_ROUNDS, self._run.options.rounds)
        return [
            Step(f"growth: fill with {ledger.case}", fill_seconds, partial(self._fill, ledger)),
            *(
                Step(
                    f"growth {number + 1}: empty and {ledger.case}",
                    ROUND_SECONDS,
                    partial(self._round, ledger, number),
                )
                for number in range(rounds)
            ),
        ]

    def _key(self, ledger: Ledger) -> str:
        return f"{ledger.order} {ledger.is_backlog}"

    def _fill(self, ledger: Ledger) -> list[Sample]:
        key = self._key(ledger)
        databases = self._run.databases
        if key not in self._databases:
            for old in self._databases.values():
                databases.drop(old)
            self._databases = {key: databases.copy(self._run.template(ENTRY))}
            with HandlerCall(
                ENTRY.module, "serve", Place(self._databases[key], free_port())
            ) as server:
                server.wait_until_serving()  # the source and the handler are registered
        database = self._databases[key]
        fill(database, ledger.events, order=ledger.order, is_done=not ledger.is_backlog)
        databases.settle(database)
        return []

    def _round(self, ledger: Ledger, number: int) -> list[Sample]:
        with self._run.place(ENTRY) as empty:
            filled = empty.having(database=self._databases[self._key(ledger)], port=free_port())
            sides = {f"empty, beside {ledger.case}": empty, ledger.case: filled}
            samples = [*self._receive(sides, ledger), *self._work(sides, ledger)]
        return [Sample(OURS, case, number, values) for case, values in samples]

    def _receive(self, sides: Sides, ledger: Ledger) -> Iterator[tuple[str, dict[str, float]]]:
        run = self._run
        with ExitStack() as serving:
            servers = {
                case: serving.enter_context(run.serving(ENTRY, place))
                for case, place in sides.items()
            }
            for place in sides.values():
                run.databases.checkpoint(place.database)
            for _, case in in_turn(list(sides), RECEIVING_BURSTS):
                order = run.order(sides[case], self._deliveries(ledger), seconds=BURST_SECONDS)
                yield case, {"ingest_rate": must_be_good(send(order), servers[case]).rate}
            for case, server in servers.items():
                memory = server.memory()
                yield case, {"receiver_mb": memory.now_mb, "receiver_peak_mb": memory.peak_mb}

    def _deliveries(self, ledger: Ledger) -> Deliveries:
        """Events that nobody has sent."""
        self._sent += 1
        count = int(PREPARED_A_SECOND / 2 * BURST_SECONDS)
        ids = (
            ordered_ids(count, first=10_000_000_000 * self._sent)
            if ledger.order == ORDERED
            else random_ids(count, seed=1_000 + self._sent)
        )
        return prepare(self._run.folder / "growth", ids)

    def _work(self, sides: Sides, ledger: Ledger) -> Iterator[tuple[str, dict[str, float]]]:
        run = self._run
        for case, place in sides.items():
            if not (ledger.is_backlog and case == ledger.case):
                queue(place.database, WORKING_BURSTS * JOBS, order=ledger.order)
            run.databases.checkpoint(place.database)
        for _, case in in_turn(list(sides), WORKING_BURSTS):
            place = sides[case]
            _clear(place)
            with HandlerCall(ENTRY.module, "work", place) as worker:
                cap = run.options.cap_seconds
                done, seconds = watch(worker, place, total=JOBS, cap_seconds=cap)
                memory = worker.memory()
                worker.stop()
            yield (
                case,
                {
                    "process_rate": done / seconds,
                    "worker_mb": memory.now_mb,
                    "worker_peak_mb": memory.peak_mb,
                },
            )


def _clear(place: Place) -> None:
    """Take away what earlier bursts did: to count it takes the longer, the more there is."""
    effects = Effects(place.database)
    effects.clear()
    effects.close()


def steps(run: Run) -> list[Step]:
    """On PostgreSQL only: SQLite serves what fits one process."""
    if run.options.store != POSTGRES or (run.options.only and OURS not in run.options.only):
        return []
    return Growth(run).steps()
