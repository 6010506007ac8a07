"""Growth: ours on a ledger with millions of events, beside an empty one in the same minutes.

Each step receives for a while, and then works off as many jobs as every other step.
"""

from dataclasses import dataclass
from functools import partial

from bench.contenders.interface import Place
from bench.deliveries import ordered_ids, prepare, random_ids
from bench.effects import Effects
from bench.field import FIELD, OURS, POSTGRES, Entry
from bench.fill import ORDERED, ORDERS, fill, queue
from bench.measures.process import watch
from bench.process import Running, free_port, send
from bench.results import Sample
from bench.run import PREPARED_A_SECOND, Run, Step, must_be_good

ENTRY: Entry = next(entry for entry in FIELD if entry.name == OURS)
MOST_ROUNDS = 5  # at the size that counts
FEW_ROUNDS = 2  # at the others
FILL_SECONDS_A_MILLION = 25.0
STEP_SECONDS = 12.0
JOBS = 25_000
FILLED_JOBS = 22_000  # the rest is what was received


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
        amount = f"{self.events:,} {kind}" if self.events else "empty"
        return f"{amount}, {self.order} ids"


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
        measure_seconds = STEP_SECONDS + 2 * self._run.options.seconds
        empty = Ledger(ledger.order, 0)
        is_largest = ledger.events == max(self._run.options.growth_events)
        rounds = min(MOST_ROUNDS if is_largest else FEW_ROUNDS, self._run.options.rounds)
        return [
            Step(f"growth: fill with {ledger.case}", fill_seconds, partial(self._fill, ledger)),
            *(
                Step(
                    f"growth {number + 1}: {at.case}",
                    measure_seconds,
                    partial(self._measure, at, ledger, number),
                )
                for number in range(rounds)
                for at in (empty, ledger)
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
            with Running(ENTRY.module, "serve", Place(self._databases[key], free_port())) as server:
                server.wait_until_serving()  # the source and the handler are registered
        database = self._databases[key]
        fill(database, ledger.events, order=ledger.order, is_done=not ledger.is_backlog)
        databases.settle(database)
        return []

    def _measure(self, at: Ledger, beside: Ledger, number: int) -> list[Sample]:
        if at.events:
            place = Place(self._databases[self._key(at)], free_port())
            values = self._receive_and_work(place, at)
        else:
            with self._run.place(ENTRY) as place:
                values = self._receive_and_work(place, at)
        case = at.case if at.events else f"empty, beside {beside.case}"
        return [Sample(OURS, case, number, values)]

    def _receive_and_work(self, place: Place, ledger: Ledger) -> dict[str, float]:
        run = self._run
        count = int(PREPARED_A_SECOND / 2 * run.options.seconds)
        self._sent += 1
        ids = (
            ordered_ids(count, first=10_000_000_000 * self._sent)
            if ledger.order == ORDERED
            else random_ids(count, seed=1_000 + self._sent)
        )
        deliveries = prepare(run.folder / "growth", ids)
        with run.serving(ENTRY, place) as server:
            run.databases.checkpoint(place.database)
            found = must_be_good(send(run.order(place, deliveries)), server)
            receiver = server.memory()
        _clear(place)
        if not ledger.is_backlog:
            queue(place.database, FILLED_JOBS, order=ledger.order)
        run.databases.checkpoint(place.database)
        with Running(ENTRY.module, "work", place) as worker:
            done, seconds = watch(
                worker,
                place,
                total=JOBS,
                cap_seconds=run.options.cap_seconds,
            )
            working = worker.memory()
        return {
            "ingest_rate": found.rate,
            "process_rate": done / seconds,
            "receiver_mb": receiver.now_mb,
            "receiver_peak_mb": receiver.peak_mb,
            "worker_mb": working.now_mb,
            "worker_peak_mb": working.peak_mb,
        }


def _clear(place: Place) -> None:
    """Take away what earlier rounds did: to count it takes the longer, the more there is."""
    effects = Effects(place.database)
    effects.clear()
    effects.close()


def steps(run: Run) -> list[Step]:
    """On PostgreSQL only: SQLite serves what fits one process."""
    if run.options.store != POSTGRES or (run.options.only and OURS not in run.options.only):
        return []
    return Growth(run).steps()
