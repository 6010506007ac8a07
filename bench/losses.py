"""The comparisons that Onceward loses, computed from the results."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.deliveries import LOADS
from bench.registry import (
    BATCH,
    BY_NAME,
    INGEST,
    LATENCY,
    LIMITS,
    ONCEWARD,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    PROCESS,
    RECEIVE,
    STORE_TITLES,
)
from bench.results import Results
from bench.tables import Table
from bench.workloads import WORKLOADS


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
            cpu_us, onceward_us = (
                results.median(each, case, "cpu_us") for each in (name, ONCEWARD)
            )
            if cpu_us and onceward_us and cpu_us < onceward_us:
                yield Loss(_full_case(results, f"{case}, CPU"), name, f"{cpu_us:.1f} µs",
                           ONCEWARD, f"{onceward_us:.1f} µs")  # fmt: skip


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


def _latency(results: Results) -> Iterator[Loss]:
    onceward = _single_shape(results)
    for case in results.cases:
        for value, title in (("p50_ms", "p50"), ("p99_ms", "p99")):
            onceward_ms = results.median(onceward, case, value)
            for name in _others(results):
                is_same_rate = _rate(results, case, name) == _rate(results, case, onceward)
                latency_ms = results.median(name, case, value)
                if is_same_rate and latency_ms and onceward_ms and latency_ms < onceward_ms:
                    full_case = _full_case(results, f"{case}, {title}")
                    yield Loss(full_case, name, f"{latency_ms:.1f} ms",
                               onceward, f"{onceward_ms:.1f} ms")  # fmt: skip


def _rate(results: Results, case: str, name: str) -> float | None:
    return results.median(name, case, "rate")


_LOSSES = {INGEST: _ingest, RECEIVE: _receive, PROCESS: _process, LATENCY: _latency}
