"""The results of a run: samples, their medians and ranges, and the files that store them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Sample:
    """The values of one contender in one case and one round."""

    contender: str
    case: str
    round: int
    values: dict[str, float]


@dataclass(frozen=True)
class Spread:
    """The median of some samples, the lowest and the highest."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Return the spread of some values, or None if there are none."""
        return cls(median(values), min(values), max(values), len(values)) if values else None


@dataclass
class Results:
    """All samples of one benchmark on one store, and the environment they come from."""

    benchmark: str
    store: str
    environment: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    """Why a contender did not run, by its name."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a trial failed, by its label."""
    notes: list[str] = field(default_factory=list)

    def spread(self, contender: str, case: str, value: str) -> Spread | None:
        """Return the median and the range of a value, or None if it was not measured."""
        values = [
            sample.values[value]
            for sample in self.samples
            if sample.contender == contender and sample.case == case and value in sample.values
        ]
        return Spread.of(values)

    def median(self, contender: str, case: str, value: str) -> float | None:
        """Return the median of a value, or None if it was not measured."""
        spread = self.spread(contender, case, value)
        return spread.median if spread else None

    @property
    def contenders(self) -> list[str]:
        """The measured contenders, in order."""
        return list(dict.fromkeys(sample.contender for sample in self.samples))

    @property
    def cases(self) -> list[str]:
        """The measured cases, in order."""
        return list(dict.fromkeys(sample.case for sample in self.samples))

    @property
    def value_names(self) -> list[str]:
        """The names of the measured values, in order."""
        return list(dict.fromkeys(name for sample in self.samples for name in sample.values))

    def summary(self) -> list[dict[str, Any]]:
        """Return the medians and ranges of every contender and case."""
        return [
            {"contender": contender, "case": case}
            | {
                name: asdict(spread)
                for name in self.value_names
                if (spread := self.spread(contender, case, name))
            }
            for contender in self.contenders
            for case in self.cases
            if any(s.contender == contender and s.case == case for s in self.samples)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, with the summary for readers of the file."""
        return asdict(self) | {"summary": self.summary()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Read the stored form; the summary follows from the samples."""
        fields = {name: value for name, value in stored.items() if name != "summary"}
        return cls(**fields | {"samples": [Sample(**sample) for sample in stored["samples"]]})


def file_name(benchmark: str, store: str) -> str:
    """Return the name of a results file."""
    return f"{benchmark}-{store}.json"


def save(folder: Path, every: Iterable[Results]) -> None:
    """Write a file for each benchmark and store."""
    folder.mkdir(parents=True, exist_ok=True)
    for results in every:
        file = folder / file_name(results.benchmark, results.store)
        file.write_text(json.dumps(results.to_json(), indent=1, ensure_ascii=False) + "\n")


def load(folder: Path, benchmarks: Sequence[str], stores: Sequence[str]) -> list[Results]:
    """Read the files that exist."""
    files = [folder / file_name(benchmark, store) for benchmark in benchmarks for store in stores]
    return [Results.from_json(json.loads(file.read_text())) for file in files if file.exists()]
