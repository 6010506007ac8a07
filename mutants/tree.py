"""A copy of the repository, in which a mutant lives and the tests run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from mutants.mutant import Mutant
from mutants.targets import ROOT

COPIED: Final = ("src", "tests", "support", "prove", "bench", "examples", "docs", "mutants")
COPIED_FILES: Final = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")
IGNORED: Final = shutil.ignore_patterns("__pycache__", ".venv", "results", "*.db", ".coverage.json")
PYTEST: Final = ("-p", "mutants.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:randomly")


@dataclass(frozen=True)
class Run:
    """A run of pytest that has ended, or was ended."""

    code: int
    output: str
    timed_out: bool = False


class Tree:
    """A temporary copy of the tree. The checkout itself is never changed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="onceward-mutants-"))
        for name in COPIED:
            shutil.copytree(ROOT / name, self.folder / name, ignore=IGNORED)
        for name in COPIED_FILES:
            shutil.copy(ROOT / name, self.folder / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def restore(self, mutant: Mutant) -> None:
        """Undo a mutant."""
        shutil.copy(ROOT / mutant.path, self.folder / mutant.path)

    def run_tests(
        self, files: Iterable[str], plan: Mapping[str, Any], *options: str, seconds: float
    ) -> Run:
        """Run the tests of some files with a plan, and end them after a time."""
        plan_file = self.folder / "plan.json"
        plan_file.write_text(json.dumps(plan))
        environment = os.environ | {
            "MUTANTS_PLAN": str(plan_file),
            "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}",
            "PYTHONDONTWRITEBYTECODE": "1",  # mutants of one second would share a file
        }
        command = [sys.executable, "-m", "pytest", *PYTEST, *options, *files]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code, timed_out = process.wait(seconds), False
            except subprocess.TimeoutExpired:
                code, timed_out = -signal.SIGKILL, True
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with the processes of its tests
                process.wait()
            output.seek(0)
            return Run(code, output.read(), timed_out)
