"""Programs of the machine that some tests and stages need, and that may not be installed."""

import os
import shutil
from pathlib import Path

LIBRARIES = Path("/usr/lib")
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")
"""Servers are installed here, and the PATH of most accounts does not contain it."""


class ProgramMissing(Exception):
    """A program or a library is not installed here; the message names it."""


def find_program(name: str) -> Path:
    """Return the path of a program. Raise ProgramMissing if there is none."""
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
    if path := shutil.which(name, path=folders):
        return Path(path)
    raise ProgramMissing(f"{name} is not installed")


def find_library(pattern: str) -> Path:
    """Return the first library that matches a pattern. Raise ProgramMissing if there is none."""
    if paths := sorted(LIBRARIES.glob(pattern)):
        return paths[0]
    raise ProgramMissing(f"{Path(pattern).name} is not installed")
