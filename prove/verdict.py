"""The verdict: the results of all stores, the minimums for a pass, and the bound on failures."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onceward.runtime.failpoints import POINTS, REDIS_POINTS
from prove.bad_inputs import BadInputsResult
from prove.checker import Figures
from prove.clock_steps import ZOMBIES
from prove.edge import EdgeResult
from prove.failover import GONE
from prove.models.check import ModelsResult
from prove.outside.stage import EFFECT_POINTS
from prove.plan import Plan, StorePlan
from prove.queueing.times import HELD_JOBS
from prove.retention.stage import KILLS, LATE, MIN_LATE, RETENTION_POINTS
from prove.vanished_file import REMOVED
from prove.workbench import StoreResult

MIN_OVERLAPPING_SHARE = 0.01
"""The share of the events for which requests with the same id must have overlapped."""

MIN_UNKNOWN_PER_KILL = 1.0

MINIMUMS = {
    "full disk": {"full disks survived": 1},
    "lost commits": {"COMMIT responses lost": 1, "database responses lost": 1},
    "failover": {GONE: 1},
    "clock steps": {ZOMBIES: 1},
    "poolers": {"workloads behind pgbouncer": 1},
    "queue": {
        "runs ended by a kill": 1,
        "keys with several jobs": 20,
        "ordered jobs done": 100,
        "ordered jobs that were retried": 5,
        "ordered jobs that were requeued": 1,
        "cancelled jobs": 5,
        "jobs cancelled while they ran": 1,
        "events of a paused source": 20,
    },
    "versions": {"versions sent": 100, "stale versions": 10},
    "effects": {
        "outside calls repeated": 1,
        "answers of outside calls lost": 1,
        "events forwarded": 10,
        "effects resolved: happened": 1,
    },
    "retention": {
        "events recorded during retention": 300,
        LATE: MIN_LATE,
        "payloads dropped": 200,
        "weeks of payloads dropped": 5,
        "jobs purged": 200,
        "redeliveries purged": 20,
        "effects purged": 1,
        "old jobs cancelled": 1,
        "payloads kept for jobs": 1,
        "files of the archive checked": 5,
    },
    "queue times": {
        "jobs taken from killed workers": HELD_JOBS,
        "claims timed beside an old snapshot": 20,
        "quick jobs beside unfair handlers": 50,
    },
}
"""The counts that every form must reach, on a slow machine as well."""

SHARED_LEDGER_MINIMUMS = {
    "processes that did maintenance": 2,
    "elections lost": 1,
    "Redis killed": 1,
    "Redis emptied": 1,
    "Redis frozen": 1,
    "Redis restored from an old dump": 1,
    "keys in Redis checked": 1,
}
"""The counts of the stage of retention that need several processes, and so PostgreSQL."""

_STAGE_OF = {
    **dict.fromkeys(EFFECT_POINTS, "effects"),
    **dict.fromkeys(RETENTION_POINTS, "retention"),
}
"""The stage that kills at a failpoint, if it is not the sweep."""


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
    stage: str | None
    """The only stage that was run, if not all were."""
    seconds: float
    results: list[StoreResult]
    requirements: list[Requirement]
    bad_inputs: BadInputsResult | None = None
    edge: EdgeResult | None = None
    models: ModelsResult | None = None

    @property
    def is_green(self) -> bool:
        """Return whether there are no findings and every requirement is met."""
        tests = self.bad_inputs
        return (
            not any(result.counts for result in self.results)
            and all(requirement.is_met for requirement in self.requirements)
            and (tests is None or (tests.failed == 0 and tests.passed > 0))
            and (self.edge is None or self.edge.is_green)
            and (self.models is None or self.models.is_green)
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
            "models": self.models.summary() if self.models else None,
        }

    def bounds(self) -> Iterator[tuple[str, int, float]]:
        """Yield the rule of three: 0 failures in N trials bound the rate by 3/N, at 95%."""
        tally = sum((result.tally for result in self.results), start=Counter[str]())
        counts = {
            "kills": self.kills,
            "PostgreSQL crashes": tally["PostgreSQL crashes"],
            "power cuts": tally["power cuts"],
            "zombies": tally["zombies woken"],
            "frozen hosts": tally["frozen hosts"],
            "failovers": tally["failovers"],
            "cancellations": tally["cancellations"],
            "clock steps": tally["clock steps"],
            "kills of workers with ordered jobs": tally["worker kills in the queue"],
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
        "delays": {what: delay._asdict() for what, delay in result.delays.items()},
        "notes": result.notes,
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
    """Yield the minimums of the stages that were run."""
    for stage, targets in _targets(plan).items():
        for what, target in targets.items():
            if result.ran(stage):
                yield Requirement(result.store, what, result.tally[what], round(target * share))
    for what, minimum in _minimums(result):
        yield Requirement(result.store, what, result.tally[what], minimum)
    if result.ran("storm"):
        yield from _load_requirements(plan, share, result)
    for point in (point for point in POINTS if point not in REDIS_POINTS):
        if result.ran(_STAGE_OF.get(point, "failpoints")):
            yield Requirement(result.store, f"kills at {point}", result.failpoints[point], 1)


def _minimums(result: StoreResult) -> Iterator[tuple[str, int]]:
    for stage, minimums in MINIMUMS.items():
        if result.ran(stage):
            yield from minimums.items()
    if result.ran("retention") and result.store == "postgres":
        yield from SHARED_LEDGER_MINIMUMS.items()


def _targets(plan: StorePlan) -> dict[str, dict[str, int]]:
    """Return the counts of each stage that the plan sets."""
    return {
        "storm": {
            "kills": plan.kills,
            "zombies woken": plan.zombies,
            "PostgreSQL crashes": plan.crashes,
        },
        "power cuts": {"power cuts": plan.power_cuts},
        "frozen host": {"frozen hosts": plan.freezes},
        "failover": {"failovers": plan.failovers},
        "cancellations": {"cancellations": plan.cancellations},
        "clock steps": {"clock steps": plan.clock_steps},
        "vanished file": {REMOVED: plan.removed_files},
        "queue": {"worker kills in the queue": plan.queue_kills, "pauses": plan.pauses},
        "queue times": {"recoveries": plan.recoveries},
        "effects": {"processes killed during outside calls": plan.effect_kills},
        "versions": {"processes killed during versions": plan.version_kills},
        "hostile content": {"hostile bodies": plan.hostile_bodies},
        "retention": {KILLS: plan.retention_kills},
    }


def _load_requirements(plan: StorePlan, share: float, result: StoreResult) -> Iterator[Requirement]:
    figures = total(result)
    yield Requirement(result.store, "events", figures.events, round(plan.events * share))
    if plan.kills:
        overlapping = round(plan.events * share * MIN_OVERLAPPING_SHARE)
        yield Requirement(result.store, "overlapping duplicates", figures.overlapping, overlapping)
        unknown = round(plan.kills * share * MIN_UNKNOWN_PER_KILL)
        yield Requirement(result.store, "unknown outcomes", figures.unknown, unknown)
        yield Requirement(result.store, "requeues", figures.requeues, 1)
        yield Requirement(result.store, "events rejected by a filter", figures.filtered, 1)
        yield Requirement(result.store, "events routed from review", figures.routed, 1)
