"""The ratios that matter, each of two medians of the same run, with targets and past runs."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.deliveries import HALF_DUPLICATES, ONE_ID, UNIQUE
from bench.registry import (
    BATCH_LOOPS,
    EMPTY_ENDPOINT,
    ON_CONFLICT,
    ON_CONFLICT_ASYNCPG,
    ONCEWARD,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    PGQUEUER,
    POSTGRES,
    SINGLE_LOOPS,
)
from bench.results import Results
from bench.seed import ORDERED, RANDOM
from bench.suite import single, verify
from bench.tables import Table
from bench.workloads import WORKLOADS

HISTORY = "runs.json"


@dataclass(frozen=True)
class Ratio:
    """A ratio with an optional target; `value` is None if a side was not measured."""

    title: str
    value: float | None
    target: float | None = None
    is_at_most: bool = False
    unit: str = "×"

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target or a value."""
        if self.value is None or self.target is None:
            return None
        return self.value <= self.target if self.is_at_most else self.value >= self.target


def find_ratios(every: Iterable[Results]) -> list[Ratio]:
    """Return the ratios of everything that was measured on PostgreSQL."""
    return [
        ratio
        for results in every
        if results.store == POSTGRES and results.benchmark in _RATIOS
        for ratio in _RATIOS[results.benchmark](results)
    ]


def _divide(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def _ingest(results: Results) -> Iterator[Ratio]:
    unique, duplicates, one_id = (
        results.median(ONCEWARD, load, "rate") for load in (UNIQUE, HALF_DUPLICATES, ONE_ID)
    )
    psycopg, asyncpg, empty = (
        results.median(name, UNIQUE, "rate")
        for name in (ON_CONFLICT, ON_CONFLICT_ASYNCPG, EMPTY_ENDPOINT)
    )
    yield Ratio("ingest, to ON CONFLICT on psycopg", _divide(unique, psycopg), 4.0)
    yield Ratio("ingest, to ON CONFLICT on asyncpg", _divide(unique, asyncpg), 6.0)
    yield Ratio("ingest, to the empty endpoint", _divide(unique, empty), 0.33)
    yield Ratio("ingest, half duplicates to unique ids", _divide(duplicates, unique), 0.9)
    yield Ratio("ingest, one id to unique ids", _divide(one_id, unique), 0.9)


CPU_TARGETS = {"64 connections": 1.0, "256 connections": 0.7}
RATE_TARGETS = {"64 connections": 0.5, "256 connections": 0.8}


def _receive(results: Results) -> Iterator[Ratio]:
    for value, title, targets, is_at_most in (
        ("cpu_us", "CPU", CPU_TARGETS, True),
        ("rate", "rate", RATE_TARGETS, False),
    ):
        for case, target in targets.items():
            onceward, empty = (
                results.median(name, case, value) for name in (ONCEWARD, EMPTY_ENDPOINT)
            )
            yield Ratio(
                f"receiving, {title} to the empty endpoint, {case}",
                _divide(onceward, empty),
                target,
                is_at_most,
            )


def _single(results: Results) -> Iterator[Ratio]:
    onceward, bare = (
        results.median(name, single.CASE, "p50_ms") for name in (ONCEWARD, single.BARE)
    )
    more = onceward - bare if onceward is not None and bare is not None else None
    yield Ratio("single request, p50 above a bare commit", more, 2.0, is_at_most=True, unit=" ms")


def _verify(results: Results) -> Iterator[Ratio]:
    onceward, bare = (results.median(name, verify.CASE, "us") for name in (ONCEWARD, verify.BARE))
    yield Ratio("verify, time to the bare digest", _divide(onceward, bare), 3.0, is_at_most=True)


def _process(results: Results) -> Iterator[Ratio]:
    for workload in WORKLOADS:
        own, shared, pgqueuer = (
            results.median(name, workload, "rate")
            for name in (ONCEWARD_OWN, ONCEWARD_SHARED, PGQUEUER)
        )
        single_loop, batch_loop = (
            _fastest(results, loops, workload) for loops in (SINGLE_LOOPS, BATCH_LOOPS)
        )
        title = f"process, {workload}:"
        yield Ratio(f"{title} own, to the fastest single loop", _divide(own, single_loop))
        yield Ratio(f"{title} shared, to the fastest batch loop", _divide(shared, batch_loop))
        yield Ratio(f"{title} shared, to the fastest single loop", _divide(shared, single_loop),
                    2.0)  # fmt: skip
        yield Ratio(f"{title} own, to PgQueuer", _divide(own, pgqueuer))
        yield Ratio(f"{title} shared, to PgQueuer", _divide(shared, pgqueuer), 1.0)


def _fastest(results: Results, contenders: Iterable[str], case: str) -> float | None:
    rates = [results.median(name, case, "rate") for name in contenders]
    return max((rate for rate in rates if rate is not None), default=None)


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
                            _to_empty(results, case, value), target)  # fmt: skip
    for value, process in (("receiver_peak_mb", "receiver"), ("worker_peak_mb", "worker")):
        ratios = [_to_empty(results, case, value) for case in results.cases]
        highest = max((ratio for ratio in ratios if ratio is not None), default=None)
        yield Ratio(f"peak memory of the {process}, to an empty ledger", highest, 1.2,
                    is_at_most=True)  # fmt: skip


def _to_empty(results: Results, case: str, value: str) -> float | None:
    return _divide(
        results.median(ONCEWARD_SHARED, case, value),
        results.median(ONCEWARD_SHARED, f"empty, beside {case}", value),
    )


_RATIOS = {
    "ingest": _ingest,
    "receive": _receive,
    "single": _single,
    "verify": _verify,
    "process": _process,
    "growth": _growth,
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
        ratio.title: round(ratio.value, 3)
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
    """Return the ratios with their targets and their range over all runs."""
    rows = []
    for ratio in ratios:
        past = [run.ratios[ratio.title] for run in history if ratio.title in run.ratios]
        rows.append(
            [
                ratio.title,
                _format(ratio, ratio.value),
                _format_range(ratio, past),
                str(len(past) or "–"),
                _format_target(ratio),
                {True: "yes", False: "NO", None: "–"}[ratio.is_met],
            ]
        )
    columns = ["Onceward", "last run", "lowest–highest", "runs", "target", "met"]
    return Table("Ratios on PostgreSQL", columns, rows)


def _format(ratio: Ratio, value: float | None) -> str:
    """Format with two digits, or three if two would hide that a target is missed."""
    if value is None:
        return "–"
    is_hidden = replace(ratio, value=value).is_met is False and round(value, 2) == ratio.target
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
