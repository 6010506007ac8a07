"""Each sabotage of the proof still finds the code that it changes."""

import subprocess
import sys

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
