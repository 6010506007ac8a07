"""The trial of a mutant: run the tests that cover it until one fails."""

import random
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pytest

from mutants.coverage import Test, covering
from mutants.mutant import Mutant, numbered
from mutants.python_mutants import python_mutants
from mutants.sql_mutants import sql_mutants
from mutants.targets import MODULES, STATEMENTS, files
from mutants.tree import Run, Tree

START_SECONDS: Final = 60.0
SLOWNESS: Final = 4.0
"""How much longer tests may take than they did without a mutant."""
FAILED: Final = re.compile(r"^(?:SUBFAILED|FAILED|ERROR)\S* (\S+)", re.MULTILINE)
NOT_IMPORTED: Final = re.compile(
    r"^ImportError while loading conftest '[^']*?(tests/\S+)'", re.MULTILINE
)
TESTS_FAILED: Final = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
"""Exit codes of failed tests, and of tests that could not be collected."""


class Outcome(StrEnum):
    """The outcome of a trial."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    """A test did not end: counts as killed."""
    SURVIVED = "survived"
    NOT_COVERED = "not covered"
    """No test runs the line: counts as survived."""


KILLED: Final = frozenset({Outcome.KILLED, Outcome.TIMED_OUT})


class Inconclusive(Exception):
    """The tests neither passed nor failed."""


@dataclass(frozen=True)
class Trial:
    """A mutant and its outcome."""

    mutant: Mutant
    outcome: Outcome
    test: str = ""
    """The test that killed it."""
    seconds: float = 0.0


def all_mutants() -> list[Mutant]:
    """Return every mutant of the core."""
    return [
        *(mutant for path in files(MODULES) for mutant in numbered(python_mutants(path))),
        *(mutant for path in files(STATEMENTS) for mutant in numbered(sql_mutants(path))),
    ]


def in_random_order(mutants: Iterable[Mutant], seed: int) -> list[Mutant]:
    """Shuffle mutants so that each beginning has its share of every module."""
    choice = random.Random(seed)  # noqa: S311 - a sample, no secret
    by_module: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_module[mutant.path].append(mutant)
    placed = []
    for group in by_module.values():
        choice.shuffle(group)
        shift = choice.random()
        placed += [((index + shift) / len(group), each) for index, each in enumerate(group)]
    return [mutant for _, mutant in sorted(placed, key=lambda pair: pair[0])]


class MutantRunner:
    """Tries mutants, one after the other, in one copy of the tree."""

    def __init__(self, tree: Tree, tests: Sequence[Test], test_seconds: float) -> None:
        self._tree = tree
        self._tests = tests
        self._test_seconds = test_seconds
        self._kills: dict[str, Counter[str]] = defaultdict(Counter)
        """How many mutants each test killed, by module: such tests run first."""

    def run(self, mutant: Mutant) -> Trial:
        """Apply a mutant, run the tests that cover it, and undo it."""
        chosen = self._choose(mutant)
        if not chosen:
            return Trial(mutant, Outcome.NOT_COVERED)
        started = time.monotonic()
        mutant.apply(self._tree.folder)
        try:
            run = self._run_tests(chosen)
        finally:
            self._tree.restore(mutant)
        outcome, test = outcome_of(run)
        if test:
            self._kills[mutant.path][test] += 1
        return Trial(mutant, outcome, test, round(time.monotonic() - started, 1))

    def _choose(self, mutant: Mutant) -> list[Test]:
        """Return the tests that cover a mutant, successful and quick ones first, up to a time."""
        tests = covering(mutant, self._tests)
        kills = self._kills[mutant.path]
        tests.sort(key=lambda test: -kills[test.name])
        chosen: list[Test] = []
        seconds = 0.0
        for test in tests:
            seconds += test.seconds
            if chosen and seconds > self._test_seconds:
                break
            chosen.append(test)
        return chosen

    def _run_tests(self, tests: Sequence[Test]) -> Run:
        names = list(dict.fromkeys(test.name.split("::")[0] for test in tests))
        plan = {"tests": {test.name: test.seconds for test in tests}}
        seconds = START_SECONDS + SLOWNESS * sum(test.seconds for test in tests)
        return self._tree.run_tests(names, plan, "-x", seconds=seconds)


def outcome_of(run: Run) -> tuple[Outcome, str]:
    """Return the outcome of a run of pytest, and the test that failed or was not collected.

    Raise Inconclusive if pytest itself failed.
    """
    if run.timed_out or run.code == -signal.SIGALRM:
        return Outcome.TIMED_OUT, ""
    if run.code == pytest.ExitCode.OK:
        return Outcome.SURVIVED, ""
    if run.code in TESTS_FAILED and (failed := FAILED.search(run.output)):
        return Outcome.KILLED, failed[1]
    if run.code == pytest.ExitCode.USAGE_ERROR and (conftest := NOT_IMPORTED.search(run.output)):
        return Outcome.KILLED, conftest[1]
    message = f"pytest ended with exit code {run.code}:\n{run.output[-2000:]}"
    raise Inconclusive(message)
