"""The verdict: the results of all stores, the minimums for a pass, and the bound on failures."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onceward.runtime.failpoints import POINTS
from prove.bad_inputs import BadInputsResult
from prove.checker import Figures
from prove.edge import EdgeResult
from prove.plan import Plan, StorePlan
from prove.stages import StoreResult

MIN_OVERLAPPING_SHARE = 0.01
"""The share of the events for which requests with the same id must have overlapped."""

MIN_UNKNOWN_PER_KILL = 1.0


@dataclass(frozen=True)
class Requirement:
    """A minimum without which a pass would mean nothing."""

    store: str
    what: str
    reached: int
    required: int

    @property
    def is_met(self) -> bool:
        """Return whether the minimum was reached."""
        return self.reached >= self.required


@dataclass
class Verdict:
    """The complete result of a run."""

    seed: int
    form: str
    sabotage: str
    seconds: float
    results: list[StoreResult]
    requirements: list[Requirement]
    bad_inputs: BadInputsResult | None = None
    edge: EdgeResult | None = None

    @property
    def is_green(self) -> bool:
        """Return whether there are no findings and every requirement is met."""
        tests = self.bad_inputs
        return (
            not any(result.counts for result in self.results)
            and all(requirement.is_met for requirement in self.requirements)
            and (tests is None or (tests.failed == 0 and tests.passed > 0))
            and (self.edge is None or self.edge.is_green)
        )

    @property
    def kills(self) -> int:
        """Return the number of SIGKILLs, random ones and those at failpoints."""
        return sum(result.tally["kills"] + result.failpoints.total() for result in self.results)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {
            "verdict": "green" if self.is_green else "red",
            "form": self.form,
            "seed": self.seed,
            **({"sabotage": self.sabotage} if self.sabotage else {}),
            "seconds": round(self.seconds, 1),
            "bounds": {
                what: f"0 failures in {count}: below {bound:.2g} each, at 95%"
                for what, count, bound in self.bounds()
            }
            if self.is_green
            else {},
            "stores": {result.store: _result_json(result) for result in self.results},
            "unmet": [asdict(entry) for entry in self.requirements if not entry.is_met],
            "bad_inputs": asdict(self.bad_inputs) if self.bad_inputs else None,
            "edge": self.edge.as_json() if self.edge else None,
        }

    def bounds(self) -> Iterator[tuple[str, int, float]]:
        """Yield the rule of three: 0 failures in N trials bound the rate by 3/N, at 95%."""
        tally = sum((result.tally for result in self.results), start=Counter[str]())
        counts = {
            "kills": self.kills,
            "PostgreSQL crashes": tally["PostgreSQL crashes"],
            "power cuts": tally["power cuts"],
            "zombies": tally["zombies woken"],
            "events": sum(total(result).events for result in self.results),
        }
        for what, count in counts.items():
            if count:
                yield what, count, min(1.0, 3 / count)


def _result_json(result: StoreResult) -> dict[str, Any]:
    return {
        "faults": dict(result.tally),
        "kills_per_minute": kills_per_minute(result),
        "failpoint_kills": dict(result.failpoints),
        "totals": asdict(total(result)),
        "figures": {name: asdict(figures) for name, figures in result.figures.items()},
        "seconds": result.seconds,
        "not_run": result.not_run,
        "findings": {violation.value: count for violation, count in result.counts.items()},
        "details": [{"stage": stage, **asdict(finding)} for stage, finding in result.findings],
    }


def total(result: StoreResult) -> Figures:
    """Return the sum of the figures of all stages."""
    return Figures(
        **{
            name: sum(getattr(figures, name) for figures in result.figures.values())
            for name in Figures().__dict__
        }
    )


def kills_per_minute(result: StoreResult) -> float:
    """Return the rate of random kills."""
    seconds = result.seconds.get("kills", 0.0)
    return round(result.tally["kills"] * 60 / seconds, 1) if seconds else 0.0


def requirements(plan: Plan, results: Sequence[StoreResult]) -> list[Requirement]:
    """Return the minimums for a pass, with the amounts reached."""
    return [
        entry
        for result in results
        for entry in _requirements(plan.stores[result.store], plan.required, result)
    ]


def _requirements(plan: StorePlan, share: float, result: StoreResult) -> Iterator[Requirement]:
    figures, tally = total(result), result.tally
    targets = {
        "events": (figures.events, plan.events),
        "kills": (tally["kills"], plan.kills),
        "zombies woken": (tally["zombies woken"], plan.zombies),
        "PostgreSQL crashes": (tally["PostgreSQL crashes"], plan.crashes),
    }
    if "power cuts" not in result.not_run:
        targets["power cuts"] = (tally["power cuts"], plan.power_cuts)
    for what, (reached, target) in targets.items():
        yield Requirement(result.store, what, reached, round(target * share))
    if "full disk" in result.seconds and "full disk" not in result.not_run:
        yield Requirement(result.store, "full disks survived", tally["full disks survived"], 1)
    if plan.lost_commits:
        for what in ("COMMIT responses lost", "database responses lost"):
            yield Requirement(result.store, what, tally[what], 1)
    if plan.kills:
        overlapping = round(plan.events * share * MIN_OVERLAPPING_SHARE)
        yield Requirement(result.store, "overlapping duplicates", figures.overlapping, overlapping)
        unknown = round(plan.kills * share * MIN_UNKNOWN_PER_KILL)
        yield Requirement(result.store, "unknown outcomes", figures.unknown, unknown)
        yield Requirement(result.store, "requeues", figures.requeues, 1)
    if "failpoints" in result.seconds:
        for point in POINTS:
            yield Requirement(result.store, f"kills at {point}", result.failpoints[point], 1)
