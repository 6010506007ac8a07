"""The verdict: what was done, what was reached, what was found, and what that is worth."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onceward.runtime.failpoints import POINTS
from prove.checker import Figures
from prove.inputs import Inputs
from prove.plan import Plan, StorePlan
from prove.stages import Result

OVERLAPPING_SHARE = 0.01
"""Of the events: at least so many requests must have met another with the same id."""

UNKNOWN_A_KILL = 1.0


@dataclass(frozen=True)
class Requirement:
    """Something without which green would mean nothing."""

    store: str
    what: str
    reached: int
    required: int

    @property
    def is_met(self) -> bool:
        """Whether it is."""
        return self.reached >= self.required


@dataclass
class Verdict:
    """Everything that a run has to say."""

    seed: int
    form: str
    sabotage: str
    seconds: float
    results: list[Result]
    requirements: list[Requirement]
    inputs: Inputs | None = None

    @property
    def is_green(self) -> bool:
        """Whether nothing was found, and enough was done for that to mean something."""
        return (
            not any(result.counts for result in self.results)
            and all(requirement.is_met for requirement in self.requirements)
            and (self.inputs is None or (self.inputs.failed == 0 and self.inputs.passed > 0))
        )

    @property
    def kills(self) -> int:
        """Every SIGKILL, at a failpoint or at random."""
        return sum(result.tally["kills"] + result.failpoints.total() for result in self.results)

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "verdict": "green" if self.is_green else "red",
            "form": self.form,
            "seed": self.seed,
            **({"sabotage": self.sabotage} if self.sabotage else {}),
            "seconds": round(self.seconds, 1),
            "bounds": {
                what: f"0 in {count}: less than {bound:.2g} each, at 95%"
                for what, count, bound in self.bounds()
            }
            if self.is_green
            else {},
            "stores": {result.store: _result_json(result) for result in self.results},
            "unmet": [asdict(entry) for entry in self.requirements if not entry.is_met],
            "inputs": asdict(self.inputs) if self.inputs else None,
        }

    def bounds(self) -> Iterator[tuple[str, int, float]]:
        """What no failure in so many tries tells, at 95%: the chance of one is less than 3/N."""
        tallies = sum(
            (result.tally for result in self.results), start=type(self.results[0].tally)()
        )
        counts = {
            "kills": self.kills,
            "PostgreSQL crashes": tallies["PostgreSQL crashes"],
            "power cuts": tallies["power cuts"],
            "zombies": tallies["zombies woken"],
            "events": sum(total(result).events for result in self.results),
        }
        for what, count in counts.items():
            if count:
                yield what, count, min(1.0, 3 / count)


def _result_json(result: Result) -> dict[str, Any]:
    return {
        "reached": dict(result.tally),
        "kills_a_minute": kills_a_minute(result),
        "failpoint_kills": dict(result.failpoints),
        "totals": asdict(total(result)),
        "figures": {name: asdict(figures) for name, figures in result.figures.items()},
        "seconds": result.seconds,
        "not_run": result.not_run,
        "findings": {rule.value: count for rule, count in result.counts.items()},
        "details": [{"stage": stage, **asdict(finding)} for stage, finding in result.findings],
    }


def total(result: Result) -> Figures:
    """The figures of all stages together."""
    names = Figures().__dict__
    return Figures(
        **{
            name: sum(getattr(figures, name) for figures in result.figures.values())
            for name in names
        }
    )


def kills_a_minute(result: Result) -> float:
    """How thickly kills fell while they did."""
    seconds = result.seconds.get("kills", 0.0)
    return round(result.tally["kills"] * 60 / seconds, 1) if seconds else 0.0


def requirements(plan: Plan, results: Sequence[Result]) -> list[Requirement]:
    """What must have been reached for a pass."""
    return [
        entry
        for result in results
        for entry in _requirements(plan.stores[result.store], plan.required, result)
    ]


def _requirements(plan: StorePlan, share: float, result: Result) -> Iterator[Requirement]:
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
        for what in ("answers to a COMMIT lost", "answers of any sort lost"):
            yield Requirement(result.store, what, tally[what], 1)
    if plan.kills:
        overlapping = round(plan.events * share * OVERLAPPING_SHARE)
        yield Requirement(result.store, "overlapping duplicates", figures.overlapping, overlapping)
        unknown = round(plan.kills * share * UNKNOWN_A_KILL)
        yield Requirement(result.store, "unknown outcomes", figures.unknown, unknown)
        yield Requirement(result.store, "requeues", figures.requeues, 1)
    if "failpoints" in result.seconds:
        for point in POINTS:
            yield Requirement(result.store, f"kills at {point}", result.failpoints[point], 1)
