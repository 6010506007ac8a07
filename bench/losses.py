"""The comparisons that Onceward loses, computed from the results."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.deliveries import LOADS
from bench.registry import (
    BATCH,
    BY_NAME,
    FAIRNESS,
    INGEST,
    LATENCY,
    LIMITS,
    ONCEWARD,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    PROCESS,
    RECEIVE,
    RECOVERY,
    SHAPES,
    STORE_TITLES,
)
from bench.results import Results
from bench.table import Table
from bench.workloads import WORKLOADS

PERCENTILES = {"p50_ms": "p50", "p99_ms": "p99"}
SHAPE_COSTS = {"worker_us": "CPU of the worker", "postgres_us": "CPU of PostgreSQL"}
UNITS = {"s": "s", "ms": "ms", "us": "µs"}


@dataclass(frozen=True)
class Loss:
    """A contender that is faster than Onceward in one case, with the values of both."""

    case: str
    contender: str
    value: str
    onceward: str
    onceward_value: str


def find_losses(every: Iterable[Results]) -> list[Loss]:
    """Return each contender of the same shape that is faster than Onceward."""
    return [
        loss
        for results in every
        if results.benchmark in _LOSSES
        for loss in _LOSSES[results.benchmark](results)
    ]


def loss_table(losses: Iterable[Loss]) -> Table:
    """Return the losses as a table."""
    rows = [
        [
            loss.case,
            BY_NAME[loss.contender].title,
            loss.value,
            BY_NAME[loss.onceward].title,
            loss.onceward_value,
        ]
        for loss in losses
    ]
    columns = ["benchmark", "contender", "median", "Onceward", "median"]
    title = "Contenders that are faster than Onceward"
    return Table(title, columns, rows, "" if rows else "None.", text_columns=len(columns))


def _full_case(results: Results, case: str) -> str:
    return f"{results.benchmark} on {STORE_TITLES[results.store]}, {case}"


def _others(results: Results) -> list[str]:
    return [
        name for name in results.contenders if not BY_NAME[name].is_onceward and name not in LIMITS
    ]


def _ingest(results: Results) -> Iterator[Loss]:
    for load in LOADS:
        for name in _others(results):
            yield from _slower(results, load, name, ONCEWARD)


def _receive(results: Results) -> Iterator[Loss]:
    for case in results.cases:
        for name in _others(results):
            yield from _slower(results, case, name, ONCEWARD)
            yield from _longer(results, case, name, ONCEWARD, "cpu_us", title="CPU")


def _process(results: Results) -> Iterator[Loss]:
    for workload in WORKLOADS:
        for name in _others(results):
            is_batch = BY_NAME[name].commit == BATCH
            onceward = ONCEWARD_SHARED if is_batch else _single_shape(results)
            yield from _slower(results, workload, name, onceward)


def _single_shape(results: Results) -> str:
    """Return Onceward with own transactions, or with shared ones if that is all there is."""
    return ONCEWARD_OWN if ONCEWARD_OWN in results.contenders else ONCEWARD_SHARED


def _slower(results: Results, case: str, name: str, onceward: str) -> Iterator[Loss]:
    rate, onceward_rate = (results.median(each, case, "rate") for each in (name, onceward))
    if rate and onceward_rate and rate > onceward_rate:
        yield Loss(
            _full_case(results, case), name, f"{rate:,.0f}/s", onceward, f"{onceward_rate:,.0f}/s"
        )


def _shapes(results: Results) -> Iterator[Loss]:
    for shape in results.cases:
        for name in _others(results):
            yield from _slower(results, shape, name, ONCEWARD_OWN)
            for value, title in SHAPE_COSTS.items():
                yield from _longer(results, shape, name, ONCEWARD_OWN, value, title=title)


def _latency(results: Results) -> Iterator[Loss]:
    onceward = _single_shape(results)
    for case in results.cases:
        for value, title in PERCENTILES.items():
            for name in _others(results):
                if _rate(results, case, name) == _rate(results, case, onceward):
                    yield from _longer(results, case, name, onceward, value, title=title)


def _rate(results: Results, case: str, name: str) -> float | None:
    return results.median(name, case, "rate")


def _recovery(results: Results) -> Iterator[Loss]:
    for case in results.cases:
        for name in _others(results):
            yield from _longer(results, case, name, ONCEWARD_OWN, "last_s", title="last job")


def _fairness(results: Results) -> Iterator[Loss]:
    for case in results.cases:
        for value, title in PERCENTILES.items():
            for name in _others(results):
                yield from _longer(results, case, name, ONCEWARD_OWN, value, title=title)


def _longer(
    results: Results, case: str, name: str, onceward: str, value: str, *, title: str
) -> Iterator[Loss]:
    """Yield a loss if Onceward's time is the longer one. The name of a value ends in its unit."""
    time, onceward_time = (results.median(each, case, value) for each in (name, onceward))
    if time and onceward_time and time < onceward_time:
        unit = UNITS[value.rpartition("_")[2]]
        yield Loss(
            _full_case(results, f"{case}, {title}"),
            name,
            f"{time:,.1f} {unit}",
            onceward,
            f"{onceward_time:,.1f} {unit}",
        )


_LOSSES = {
    INGEST: _ingest,
    RECEIVE: _receive,
    PROCESS: _process,
    SHAPES: _shapes,
    LATENCY: _latency,
    RECOVERY: _recovery,
    FAIRNESS: _fairness,
}
