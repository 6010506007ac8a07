"""What is asked of Onceward, beside what was measured. All are ratios of medians of one run."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bench.effects import WORKLOADS
from bench.field import (
    BATCH_LOOPS,
    EMPTY,
    LOOPS,
    ONCONFLICT,
    ONCONFLICT_ASYNCPG,
    OURS,
    OURS_OWN,
    OURS_SHARED,
    PGQUEUER,
    POSTGRES,
)
from bench.results import Results
from bench.tables import Grid


@dataclass(frozen=True)
class Target:
    """One demand. `measured` is None where the run did not measure it."""

    what: str
    asked: float | None
    measured: float | None
    is_most: bool = False
    unit: str = "×"

    @property
    def reached(self) -> bool | None:
        """Whether it was; None where nobody knows."""
        if self.measured is None or self.asked is None:
            return None
        return self.measured <= self.asked if self.is_most else self.measured >= self.asked


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _ingest(results: Results) -> Iterator[Target]:
    unique, half, storm = (
        results.median(OURS, load, "rate") for load in ("unique", "half", "storm")
    )
    onconflict = results.median(ONCONFLICT, "unique", "rate")
    empty = results.median(EMPTY, "unique", "rate")
    asyncpg = results.median(ONCONFLICT_ASYNCPG, "unique", "rate")
    yield Target("ingest, against INSERT … ON CONFLICT, psycopg", 4.0, _ratio(unique, onconflict))
    yield Target("ingest, against INSERT … ON CONFLICT, asyncpg", None, _ratio(unique, asyncpg))
    yield Target("ingest, against the empty endpoint", 0.33, _ratio(unique, empty))
    yield Target("ingest, half duplicates, against unique", 0.9, _ratio(half, unique))
    yield Target("ingest, one id only, against unique", 0.9, _ratio(storm, unique))


def _lone(results: Results) -> Iterator[Target]:
    ours, bare = (results.median(name, "lone", "p50_ms") for name in (OURS, "bare"))
    more = ours - bare if ours is not None and bare is not None else None
    yield Target("lone p50, above INSERT and COMMIT", 2.0, more, is_most=True, unit=" ms")


def _verify(results: Results) -> Iterator[Target]:
    ours, bare = (results.median(name, "Stripe", "us") for name in (OURS, "bare"))
    yield Target("verify, against the bare digest", 3.0, _ratio(ours, bare), is_most=True)


def _process(results: Results) -> Iterator[Target]:
    for workload in WORKLOADS:
        own, shared, pgqueuer = (
            results.median(name, workload, "rate") for name in (OURS_OWN, OURS_SHARED, PGQUEUER)
        )
        single, batch = (_best(results, loops, workload) for loops in (LOOPS, BATCH_LOOPS))
        what = f"process, {workload}"
        yield Target(f"{what}: own, against the best single loop", None, _ratio(own, single))
        yield Target(f"{what}: shared, against the best batch loop", None, _ratio(shared, batch))
        yield Target(f"{what}: shared, against the best single loop", 2.0, _ratio(shared, single))
        yield Target(f"{what}: own, against PgQueuer", None, _ratio(own, pgqueuer))
        yield Target(f"{what}: shared, against PgQueuer", 1.0, _ratio(shared, pgqueuer))


def _best(results: Results, contenders: Iterable[str], case: str) -> float | None:
    rates = [results.median(name, case, "rate") for name in contenders]
    return max((rate for rate in rates if rate is not None), default=None)


def _growth(results: Results) -> Iterator[Target]:
    for order, asked in (("ordered", 0.9), ("random", 0.8)):
        cases = [case for case in results.cases if case.endswith(f" done, {order} ids")]
        filled = [case for case in cases if not case.startswith("empty")]
        if not filled:
            continue
        case = filled[-1]  # the largest
        for value, name in (("ingest_rate", "ingest"), ("process_rate", "process")):
            ratio = _ratio(
                results.median(OURS, case, value),
                results.median(OURS, f"empty, beside {case}", value),
            )
            yield Target(f"{name} with {case}, against empty", asked, ratio)
    for value, name in (("receiver_peak_mb", "receiver"), ("worker_peak_mb", "worker")):
        ratios = [
            ratio
            for case in results.cases
            if (
                ratio := _ratio(
                    results.median(OURS, case, value),
                    results.median(OURS, f"empty, beside {case}", value),
                )
            )
        ]
        yield Target(f"peak memory of the {name}, against empty", 1.2,
                     max(ratios, default=None), is_most=True)  # fmt: skip


TARGETS = {
    "ingest": _ingest,
    "lone": _lone,
    "verify": _verify,
    "process": _process,
    "growth": _growth,
}


def targets(every: Mapping[str, Results]) -> list[Target]:
    """The demands on what was measured on PostgreSQL."""
    return [
        target
        for name, find in TARGETS.items()
        if name in every and every[name].store == POSTGRES
        for target in find(every[name])
    ]


def _shown(target: Target) -> str:
    """With two digits, or three where two would show what was missed as if it were reached."""
    if target.measured is None:
        return "–"
    is_hidden = target.reached is False and round(target.measured, 2) == target.asked
    return f"{target.measured:.{3 if is_hidden else 2}f}{target.unit}"


def _asked(target: Target) -> str:
    if target.asked is None:
        return "–"
    return f"{'≤' if target.is_most else '≥'} {target.asked:g}{target.unit}"


def grid(found: list[Target]) -> Grid:
    """Asked, measured, reached."""
    words = {True: "yes", False: "NO", None: "–"}
    rows = [
        [target.what, _asked(target), _shown(target), words[target.reached]] for target in found
    ]
    return Grid("Targets", ["", "asked", "measured", "reached"], rows)
