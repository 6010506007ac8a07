"""Each sabotage of the proof finds the code that it changes, and has a fast test."""

import subprocess
import sys
from pathlib import Path

from prove.sabotage import Sabotage
from tests.fast_tests import FAST_TESTS

TESTS = Path(__file__).parents[1]

# Sabotages change the modules of their process: each gets a child of its own.
APPLY_EACH = """
import os, sys, traceback
from prove.sabotage import _PATCHES

for sabotage, patch in _PATCHES.items():
    child = os.fork()
    if child == 0:
        try:
            patch()
        except BaseException:
            print(sabotage)
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_every_sabotage_can_be_applied() -> None:
    done = subprocess.run(
        [sys.executable, "-c", APPLY_EACH], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_every_sabotage_has_a_fast_test() -> None:
    """`make nightly` sees each red under its sabotage."""
    assert set(FAST_TESTS) == set(Sabotage) - {Sabotage.NONE}
    for path, _, name in (test.partition("::") for test in FAST_TESTS.values()):
        assert f"def {name}(" in (TESTS / path).read_text()
