"""Each sabotage of the proof turns a fast test of `make test` red."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prove.sabotage import VARIABLE, Sabotage
from tests.fast_tests import ELSEWHERE, FAST_TESTS

TESTS = Path(__file__).parents[1]
SOME_FAILED = 1


def run(sabotage: Sabotage, test: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.sabotage_plugin", "--tb=no", TESTS / test],
        env={**os.environ, VARIABLE: sabotage},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("sabotage", [each for each in FAST_TESTS if each not in ELSEWHERE])
def test_its_fast_test_fails(sabotage: Sabotage) -> None:
    done = run(sabotage, FAST_TESTS[sabotage])
    if "skipped" in done.stdout and not {"passed", "failed"} & set(done.stdout.split()):
        pytest.skip("its test needs a program that is not installed")
    assert done.returncode == SOME_FAILED, done.stdout
    assert "FAILED " in done.stdout, "an error of a fixture shows nothing"
