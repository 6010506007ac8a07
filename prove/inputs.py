"""The bad inputs: tests of their own, run as a part of the proof."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
FILES = (
    "tests/integration/test_bad_inputs.py",
    "tests/property/test_verify_mutations.py",
    "tests/property/test_openapi.py",
)
OPTIONS = ("-q", "--durations=0", "--durations-min=60", "--tb=short", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Inputs:
    """How the tests went."""

    passed: int
    failed: int
    tail: str
    """The end of what they printed, when one failed."""


def run_inputs() -> Inputs:
    """Run those that there are."""
    files = [name for name in FILES if (ROOT / name).exists()]
    with tempfile.TemporaryDirectory(prefix="onceward-") as folder:
        counts = Path(folder) / "counts.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={counts}", *files],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        suite = next(iter(ET.parse(counts).getroot()))  # noqa: S314 - our own file
    total, failures, errors, skipped = (
        int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return Inputs(total - failed - skipped, failed, done.stdout[-4_000:] if failed else "")
