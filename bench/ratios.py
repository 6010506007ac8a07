"""The ratios that matter, each of two sides in the same round, with targets and past runs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.deliveries import HALF_DUPLICATES, ONE_ID, UNIQUE
from bench.registry import (
    BATCH_LOOPS,
    EMPTY_ENDPOINT,
    IN_REQUEST,
    ON_CONFLICT,
    ON_CONFLICT_ASYNCPG,
    ONCEWARD,
    ONCEWARD_FLEET,
    ONCEWARD_FLEET_REDIS,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    PGQUEUER,
    POSTGRES,
    SHAPES_LOOP,
    SHAPES_LOOP_ASYNCPG,
    SINGLE_LOOPS,
)
from bench.results import Results, Spread
from bench.seed import ORDERED, RANDOM
from bench.shapes import EFFECTS, OWN, SYNC, WAITING
from bench.suite import latency, retention, single, storm, verify
from bench.table import Table
from bench.workloads import WORKLOADS

HISTORY = "runs.json"


# Two sides of one run, round by round.

Side = tuple[str, str]
"""A contender and a case."""


def compare(results: Results, side: Side, other: Side, value: str) -> Spread | None:
    """Return the median and the range of the ratios of two sides, one for each round or burst."""
    return Spread.of([mine / its for mine, its in _pairs(results, side, other, value) if its])


def _pairs(results: Results, side: Side, other: Side, value: str) -> list[tuple[float, float]]:
    """Return the values of two sides in the rounds and bursts that both have."""
    mine, its = (_by_turn(results, each, value) for each in (side, other))
    return [(mine[turn], its[turn]) for turn in mine if turn in its]


def _by_turn(results: Results, side: Side, value: str) -> dict[tuple[int, int], float]:
    """Return a value by the number of the round, and that of the burst within it."""
    found: dict[tuple[int, int], float] = {}
    bursts: Counter[int] = Counter()
    for sample in results.samples:
        if (sample.contender, sample.case) == side and value in sample.values:
            found[sample.round, bursts[sample.round]] = sample.values[value]
            bursts[sample.round] += 1
    return found


def compare_contenders(
    results: Results, name: str, other: str, case: str, value: str = "rate"
) -> Spread | None:
    """Compare two contenders in the same case."""
    return compare(results, (name, case), (other, case), value)


def compare_with_empty(results: Results, case: str, value: str) -> Spread | None:
    """Compare a large ledger with an empty one."""
    empty = (ONCEWARD_SHARED, f"empty, beside {case}")
    return compare(results, (ONCEWARD_SHARED, case), empty, value)


def compare_maintenance(results: Results, case: retention.Case, value: str) -> Spread | None:
    """Compare turns with maintenance and without; None if it did next to nothing."""
    if not retention.has_purged(results, case):
        return None
    return compare(results, (ONCEWARD, case.title), (ONCEWARD, case.without), value)


@dataclass(frozen=True)
class Ratio:
    """A ratio with an optional target; without a spread if a side was not measured."""

    title: str
    spread: Spread | None
    target: float | None = None
    is_at_most: bool = False
    unit: str = "×"

    @property
    def value(self) -> float | None:
        """The median of the rounds."""
        return self.spread.median if self.spread else None

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target or a value."""
        return None if self.value is None else self.is_met_by(self.value)

    def is_met_by(self, value: float) -> bool | None:
        """Return whether a value meets the target; None without a target."""
        if self.target is None:
            return None
        return value <= self.target if self.is_at_most else value >= self.target


def find_ratios(every: Iterable[Results]) -> list[Ratio]:
    """Return the ratios of everything that was measured on PostgreSQL."""
    return [
        ratio
        for results in every
        if results.store == POSTGRES and results.benchmark in _RATIOS
        for ratio in _RATIOS[results.benchmark](results)
    ]


def _ingest(results: Results) -> Iterator[Ratio]:
    for other, title, target in (
        (ON_CONFLICT, "ON CONFLICT on psycopg", 4.0),
        (ON_CONFLICT_ASYNCPG, "ON CONFLICT on asyncpg", 6.0),
        (EMPTY_ENDPOINT, "the empty endpoint", 0.33),
    ):
        spread = compare_contenders(results, ONCEWARD, other, UNIQUE)
        yield Ratio(f"ingest, to {title}", spread, target)
    for load in (HALF_DUPLICATES, ONE_ID):
        spread = compare(results, (ONCEWARD, load), (ONCEWARD, UNIQUE), "rate")
        yield Ratio(f"ingest, {load} to unique ids", spread, 0.9)


CPU_TARGETS = {"64 connections": 1.0, "256 connections": 0.7}
RATE_TARGETS = {"64 connections": 0.5, "256 connections": 0.8}


def _receive(results: Results) -> Iterator[Ratio]:
    for value, title, targets, is_at_most in (
        ("cpu_us", "CPU", CPU_TARGETS, True),
        ("rate", "rate", RATE_TARGETS, False),
    ):
        for case, target in targets.items():
            yield Ratio(
                f"receiving, {title} to the empty endpoint, {case}",
                compare_contenders(results, ONCEWARD, EMPTY_ENDPOINT, case, value),
                target,
                is_at_most,
            )


def _single(results: Results) -> Iterator[Ratio]:
    sides = (ONCEWARD, single.CASE), (single.BARE, single.CASE)
    more = Spread.of([mine - its for mine, its in _pairs(results, *sides, "p50_ms")])
    yield Ratio("single request, p50 above a bare commit", more, 2.0, is_at_most=True, unit=" ms")


def _verify(results: Results) -> Iterator[Ratio]:
    spread = compare_contenders(results, ONCEWARD, verify.BARE, verify.CASE, "us")
    yield Ratio("verify, time to the bare digest", spread, 3.0, is_at_most=True)


def _process(results: Results) -> Iterator[Ratio]:
    for workload in WORKLOADS:
        single_loop, batch_loop = (
            _fastest(results, loops, workload) for loops in (SINGLE_LOOPS, BATCH_LOOPS)
        )
        for shape, other, title in (
            (ONCEWARD_OWN, single_loop, "own, to the fastest loop of single jobs"),
            (ONCEWARD_SHARED, batch_loop, "shared, to the fastest loop of batches"),
            (ONCEWARD_SHARED, single_loop, "shared, to the fastest loop of single jobs"),
            (ONCEWARD_OWN, PGQUEUER, "own, to PgQueuer"),
            (ONCEWARD_SHARED, PGQUEUER, "shared, to PgQueuer"),
        ):
            spread = compare_contenders(results, shape, other, workload)
            yield Ratio(f"process, {workload}: {title}", spread)


def _fastest(results: Results, contenders: Sequence[str], case: str) -> str:
    """Return the contender with the highest median."""
    return max(contenders, key=lambda name: results.median(name, case, "rate") or 0.0)


SHAPE_TARGETS = {OWN: 1.2, EFFECTS: 1.2, SYNC: 1.2, WAITING: 1.1}


def _shapes(results: Results) -> Iterator[Ratio]:
    for shape, target in SHAPE_TARGETS.items():
        spread = compare_contenders(results, ONCEWARD_OWN, SHAPES_LOOP, shape)
        yield Ratio(f"shapes, {shape}: to the loop on psycopg", spread, target)
        if shape != SYNC:
            spread = compare_contenders(results, ONCEWARD_OWN, SHAPES_LOOP_ASYNCPG, shape)
            yield Ratio(f"shapes, {shape}: to the loop on asyncpg", spread)


def _latency(results: Results) -> Iterator[Ratio]:
    spread = compare_contenders(results, ONCEWARD_OWN, IN_REQUEST, latency.STEADY, "p50_ms")
    title = "latency at 100/s, p50, to a handler in the request"
    yield Ratio(title, spread, 2.0, is_at_most=True)


def _growth(results: Results) -> Iterator[Ratio]:
    for id_order, target in ((ORDERED, 0.9), (RANDOM, 0.8)):
        large = [
            case
            for case in results.cases
            if case.endswith(f" done, {id_order} ids") and not case.startswith("empty")
        ]
        for value, verb in (("ingest_rate", "ingest"), ("process_rate", "process")):
            for case in large[-1:]:
                yield Ratio(f"{verb} with {case}, to an empty ledger",
                            compare_with_empty(results, case, value), target)  # fmt: skip
    for value, process in (("receiver_peak_mb", "receiver"), ("worker_peak_mb", "worker")):
        spreads = [compare_with_empty(results, case, value) for case in results.cases]
        found = [spread for spread in spreads if spread]
        highest = max(found, key=lambda spread: spread.median, default=None)
        yield Ratio(f"peak memory of the {process}, to an empty ledger", highest, 1.2,
                    is_at_most=True)  # fmt: skip


def _storm(results: Results) -> Iterator[Ratio]:
    for case in storm.CASES:
        for value, title in (
            ("rate", "rate"),
            ("receivers_us", "CPU of the receivers"),
            ("postgres_us", "CPU of PostgreSQL"),
        ):
            spread = compare_contenders(results, ONCEWARD_FLEET_REDIS, ONCEWARD_FLEET, case, value)
            yield Ratio(f"storm, {title} with Redis to without, {case}", spread)


def _retention(results: Results) -> Iterator[Ratio]:
    for case in retention.CASES:
        spread = compare_maintenance(results, case, "p99_ms")
        yield Ratio(f"p99 of receiving, {case.title}, to none", spread, 2.0, is_at_most=True)
    # A single moment of a turn, such as the drop, may not show in p99.
    for case in retention.CASES:
        longest = results.spread(ONCEWARD, case.title, "max_ms")
        yield Ratio(f"longest wait of receiving, {case.title}", longest, unit=" ms")


_RATIOS = {
    "ingest": _ingest,
    "receive": _receive,
    "single": _single,
    "verify": _verify,
    "process": _process,
    "shapes": _shapes,
    "latency": _latency,
    "growth": _growth,
    "storm": _storm,
    "retention": _retention,
}


# Past runs.


@dataclass(frozen=True)
class PastRun:
    """The ratios of one run."""

    date: str
    ratios: Mapping[str, float]


def load_history(folder: Path) -> list[PastRun]:
    """Read the ratios of all stored runs."""
    file = folder / HISTORY
    if not file.exists():
        return []
    return [PastRun(**run) for run in json.loads(file.read_text())]


def append_history(folder: Path, every: Sequence[Results]) -> None:
    """Add the ratios of a new run."""
    values = {
        ratio.title: ratio.value  # not rounded: the page rounds, and twice would be another figure
        for ratio in find_ratios(every)
        if ratio.value is not None
    }
    if not values:
        return
    runs = [
        *({"date": run.date, "ratios": run.ratios} for run in load_history(folder)),
        {"date": every[0].environment["date"], "ratios": values},
    ]
    (folder / HISTORY).write_text(json.dumps(runs, indent=1) + "\n")


def ratio_table(ratios: Iterable[Ratio], history: Sequence[PastRun]) -> Table:
    """Return the ratios with their range in the last run and over all runs, and their targets."""
    rows = []
    for ratio in ratios:
        past = [run.ratios[ratio.title] for run in history if ratio.title in run.ratios]
        rounds = [ratio.spread.low, ratio.spread.high] if ratio.spread else []
        # The last run may be compared in another way than when it was stored, or not be stored.
        last = [] if ratio.value is None or not past else [ratio.value]
        rows.append(
            [
                ratio.title,
                "–" if ratio.value is None else _format(ratio, ratio.value),
                _format_range(ratio, rounds),
                _format_range(ratio, [*past, *last]),
                str(len(past) or "–"),
                _format_target(ratio),
                {True: "yes", False: "NO", None: "–"}[ratio.is_met],
            ]
        )
    columns = ["Onceward", "last run", "its rounds", "all runs", "runs", "target", "met"]
    return Table("Ratios on PostgreSQL", columns, rows)


def _format(ratio: Ratio, value: float) -> str:
    """Format with two digits, or three if two would hide that a target is missed."""
    is_hidden = ratio.is_met_by(value) is False and round(value, 2) == ratio.target
    return f"{value:.{3 if is_hidden else 2}f}{ratio.unit}"


def _format_range(ratio: Ratio, values: Sequence[float]) -> str:
    if not values:
        return "–"
    low, high = (_format(ratio, value) for value in (min(values), max(values)))
    return f"{low.removesuffix(ratio.unit)}–{high}"


def _format_target(ratio: Ratio) -> str:
    if ratio.target is None:
        return "–"
    return f"{'≤' if ratio.is_at_most else '≥'} {ratio.target:g}{ratio.unit}"
