"""A pytest plugin: traces which lines each test runs, or runs the tests of a plan in its order.

``MUTANTS_PLAN`` names a JSON file. Its key ``coverage`` names the file to write, and ``core``
the files to trace; its key ``tests`` has the chosen tests in order, each with its usual seconds.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

PLAN: Final = json.loads(Path(os.environ["MUTANTS_PLAN"]).read_text())
HANG_SECONDS: Final = 15
HANG_FACTOR: Final = 8


def pytest_configure(config: pytest.Config) -> None:
    """Register the part that the plan asks for."""
    imported = sys.modules["onceward"].__file__  # by conftest.py, whose errors pytest reports
    assert imported is not None
    assert Path(imported).is_relative_to(Path.cwd()), "the tests must run the copied tree"
    part = Tracer(Path(PLAN["coverage"])) if "coverage" in PLAN else Selection(PLAN["tests"])
    config.pluginmanager.register(part)


class Selection:
    """Runs the chosen tests, and ends the process if one of them hangs."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests, in the order of the plan."""
        items[:] = [item for item in items if item.nodeid in self._seconds]
        order = list(self._seconds)
        items.sort(key=lambda item: order.index(item.nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """End the process with SIGALRM if a test takes much longer than it should."""
        signal.alarm(int(HANG_SECONDS + HANG_FACTOR * self._seconds[item.nodeid]))
        try:
            return (yield)
        finally:
            signal.alarm(0)


class Tracer:
    """Traces the lines of the core and the names of the statements that each test runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = {str(Path.cwd() / name): name for name in PLAN["core"]}
        self._covered: set[tuple[str, int | str]] = set()
        self._tests: dict[str, Any] = {}
        self._names: dict[CodeType, str | None] = {}
        # The trial of a mutant imports the package in conftest.py only.
        from mutants.statement_tracer import trace_statements  # noqa: PLC0415

        trace_statements(self._cover_statement, pytest.MonkeyPatch())

    def _cover_statement(self, name: str) -> None:
        self._covered.add(("statement", name))

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        try:
            name = self._names[code]
        except KeyError:
            name = self._names[code] = self._files.get(code.co_filename)
        return None if name is None else self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._covered.add((frame.f_code.co_filename, frame.f_lineno))
        return self._step

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace one test with its fixtures."""
        self._covered.clear()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            entry = self._tests.setdefault(item.nodeid, {"seconds": 0.0, "passed": False})
            lines: dict[str, list[int | str]] = {}
            for file, line in list(self._covered):
                lines.setdefault(self._files.get(file, file), []).append(line)
            entry["covered"] = lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the time and the outcome of a test."""
        entry = self._tests.setdefault(report.nodeid, {"seconds": 0.0, "passed": False})
        entry["seconds"] += report.duration
        if report.when == "call":
            entry["passed"] = report.passed

    def pytest_sessionfinish(self) -> None:
        """Write the coverage of each test."""
        self._path.write_text(json.dumps(self._tests))
