"""What was measured: samples, their medians and spreads, and the files they are kept in."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Sample:
    """What one contender reached in one case in one round."""

    contender: str
    case: str
    round: int
    values: dict[str, float]


@dataclass(frozen=True)
class Spread:
    """The middle of some samples, and their ends."""

    median: float
    low: float
    high: float
    count: int


@dataclass
class Results:
    """All samples of one measure, and where they come from."""

    measure: str
    store: str
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)  # a contender, and why
    failures: dict[str, str] = field(default_factory=dict)  # a step, and what went wrong

    def spread(self, contender: str, case: str, value: str) -> Spread | None:
        """The median and the ends of one value; None where there is none."""
        found = [
            sample.values[value]
            for sample in self.samples
            if sample.contender == contender and sample.case == case and value in sample.values
        ]
        return Spread(median(found), min(found), max(found), len(found)) if found else None

    def median(self, contender: str, case: str, value: str) -> float | None:
        """The median of one value; None where there is none."""
        spread = self.spread(contender, case, value)
        return spread.median if spread else None

    @property
    def contenders(self) -> list[str]:
        """Who was measured, in order."""
        return list(dict.fromkeys(sample.contender for sample in self.samples))

    @property
    def cases(self) -> list[str]:
        """What was measured, in order."""
        return list(dict.fromkeys(sample.case for sample in self.samples))

    @property
    def values(self) -> list[str]:
        """The names of what was measured, in order."""
        return list(dict.fromkeys(name for sample in self.samples for name in sample.values))

    def summary(self) -> list[dict[str, Any]]:
        """Each contender and case with its medians and spreads."""
        return [
            {"contender": contender, "case": case}
            | {
                name: asdict(spread)
                for name in self.values
                if (spread := self.spread(contender, case, name))
            }
            for contender in self.contenders
            for case in self.cases
            if any(s.contender == contender and s.case == case for s in self.samples)
        ]

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self) | {"summary": self.summary()}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        """Back from what was kept; the summary is made anew."""
        samples = [Sample(**sample) for sample in kept["samples"]]
        known = {name: kept[name] for name in ("measure", "store", "facts", "not_run", "failures")}
        return cls(samples=samples, **known)


def file_name(measure: str, store: str, kind: str = "json") -> str:
    """PostgreSQL is the rule, and is not named."""
    return f"{measure}.{kind}" if store == "postgres" else f"{measure}-{store}.{kind}"


def save(folder: Path, every: Iterable[Results]) -> list[Path]:
    """Write a file for each measure."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for results in every:
        file = folder / file_name(results.measure, results.store)
        file.write_text(json.dumps(results.to_json(), indent=1, ensure_ascii=False) + "\n")
        files.append(file)
    return files


def load(folder: Path, measures: Sequence[str], stores: Sequence[str]) -> list[Results]:
    """Read what is there."""
    files = [folder / file_name(measure, store) for store in stores for measure in measures]
    return [Results.from_json(json.loads(file.read_text())) for file in files if file.exists()]
