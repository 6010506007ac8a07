"""The result of a run, as it is kept in mutants/results.json."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from mutants.mutant import Identity, Mutant, one_line
from mutants.trials import KILLED, Trial

RESULTS: Final = Path(__file__).parent / "results.json"
REASONS: Final = Path(__file__).parent / "reasons.toml"


@dataclass(frozen=True)
class Entry:
    """A mutant that was tried."""

    module: str
    scope: str
    kind: str
    before: str
    after: str
    occurrence: int
    outcome: str
    test: str
    """The test that killed it."""

    @property
    def change(self) -> str:
        """The change in one line."""
        return f"{self.kind}: {self.before}"

    @property
    def identity(self) -> Identity:
        """The identity of the mutant."""
        return Identity(self.module, self.scope, self.change, self.after, self.occurrence)

    @property
    def is_killed(self) -> bool:
        """Return whether a test failed or timed out."""
        return self.outcome in KILLED


@dataclass(frozen=True)
class Result:
    """The mutants that were tried."""

    seed: int
    candidates: int
    """The number of mutants of the tree."""
    minutes: float
    entries: Sequence[Entry]

    @property
    def killed(self) -> int:
        """The number of killed mutants."""
        return sum(entry.is_killed for entry in self.entries)

    @property
    def score(self) -> float:
        """The mutation score: the share of killed mutants."""
        return self.killed / len(self.entries) if self.entries else 0.0

    @property
    def survivors(self) -> list[Entry]:
        """The mutants that no test killed."""
        return [entry for entry in self.entries if not entry.is_killed]

    @property
    def headline(self) -> str:
        """The score in one line."""
        tried = len(self.entries)
        return f"Mutation score: {self.score:.0%}. Tests killed {self.killed} of {tried} mutants."

    def outcome(self, mutant: Mutant) -> str | None:
        """Return the outcome of a mutant, or None if it was not tried."""
        entry = self._by_identity.get(mutant.identity)
        return None if entry is None else entry.outcome

    @cached_property
    def _by_identity(self) -> dict[Identity, Entry]:
        return {entry.identity: entry for entry in self.entries}

    def updated(self, later: "Result") -> "Result":
        """Return the result with the entries of a later run, which replace earlier ones."""
        entries = {entry.identity: entry for entry in (*self.entries, *later.entries)}
        minutes = round(self.minutes + later.minutes, 1)
        return Result(self.seed, later.candidates, minutes, list(entries.values()))

    def limited_to(self, mutants: Sequence[Mutant]) -> "Result":
        """Return the result without entries that are not among the mutants, in their order."""
        entries = (self._by_identity.get(mutant.identity) for mutant in mutants)
        kept = [entry for entry in entries if entry is not None]
        return Result(self.seed, len(mutants), self.minutes, kept)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "seed": self.seed,
            "candidates": self.candidates,
            "minutes": self.minutes,
            "tried": len(self.entries),
            "killed": self.killed,
            "entries": [asdict(entry) for entry in self.entries],
        }


def summarise(trials: Sequence[Trial], *, seed: int, candidates: int) -> Result:
    """Return the result of some trials."""
    minutes = round(sum(trial.seconds for trial in trials) / 60, 1)
    return Result(seed, candidates, minutes, [_entry(trial) for trial in trials])


def _entry(trial: Trial) -> Entry:
    mutant = trial.mutant
    return Entry(
        module=mutant.module,
        scope=mutant.scope,
        kind=mutant.kind,
        before=one_line(mutant.before),
        after=one_line(mutant.after),
        occurrence=mutant.occurrence,
        outcome=trial.outcome,
        test=trial.test,
    )


def save(result: Result) -> None:
    """Write mutants/results.json."""
    RESULTS.write_text(json.dumps(result.as_json(), indent=1, ensure_ascii=False) + "\n")


def load() -> Result:
    """Read mutants/results.json."""
    data = json.loads(RESULTS.read_text())
    entries = [Entry(**entry) for entry in data["entries"]]
    return Result(data["seed"], data["candidates"], data["minutes"], entries)


def load_reasons() -> dict[tuple[str, str, str], str]:
    """Return why known survivors do not matter, by module, scope and change."""
    tables = tomllib.loads(REASONS.read_text())
    return {
        (module, scope, change): reason
        for module, scopes in tables.items()
        for scope, changes in scopes.items()
        for change, reason in changes.items()
    }
