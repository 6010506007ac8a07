"""The tests of bad inputs, run as a part of the proof."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from support.processes import ROOT

FILES = (
    "tests/integration/test_bad_inputs.py",
    "tests/property/test_verify_mutations.py",
    "tests/property/test_openapi.py",
)
OPTIONS = ("-q", "--durations=0", "--durations-min=60", "--tb=short", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class BadInputsResult:
    """The result of the tests."""

    passed: int
    failed: int
    tail: str
    """The end of their output, if one failed."""


def run_bad_inputs() -> BadInputsResult:
    """Run the tests and count their results."""
    with tempfile.TemporaryDirectory(prefix="onceward-") as folder:
        counts = Path(folder) / "counts.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={counts}", *FILES],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        suite = next(iter(ET.parse(counts).getroot()))  # noqa: S314 - written by our own tests
    total, failures, errors, skipped = (
        int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return BadInputsResult(total - failed - skipped, failed, done.stdout[-4_000:] if failed else "")
