"""Each sabotage of the proof turns a fast test of `make test` red."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prove.sabotage import VARIABLE, Sabotage
from tests.sabotages import FAST_TESTS

TESTS = Path(__file__).parents[1]
ELSEWHERE = {Sabotage.WEAK_SYNC, Sabotage.NO_TRANSACTION}
"""They change the server's settings, or the handlers of the proof's own app."""
ALL_PASSED, SOME_FAILED = 0, 1


def run(sabotage: Sabotage, test: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.sabotaged", "--tb=no", TESTS / test],
        env={**os.environ, VARIABLE: sabotage},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("sabotage", [each for each in FAST_TESTS if each not in ELSEWHERE])
def test_its_fast_test_fails(sabotage: Sabotage) -> None:
    done = run(sabotage, FAST_TESTS[sabotage])
    if done.returncode == ALL_PASSED and "skipped" in done.stdout:
        pytest.skip("its test needs a program that is not installed")
    assert done.returncode == SOME_FAILED, done.stdout
