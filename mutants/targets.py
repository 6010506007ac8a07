"""The core: the modules and statements that are mutated, and the tests that run against them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "src/onceward"

PARTS: Final = {
    "receiving": ("receive/*.py",),
    "claiming": ("work/claiming/*.py",),
    "worker": ("work/worker.py",),
    "running": (
        "work/running/runner.py",
        "work/running/transaction.py",
        "work/running/batching.py",
        "work/running/event_batches.py",
        "work/running/giving_up.py",
        "work/running/staleness.py",
        "work/outside/calls.py",
    ),
    "settling": ("work/settling/*.py",),
    "stores": (
        "store/postgres/recording.py",
        "store/postgres/transaction.py",
        "store/postgres/claiming.py",
        "store/sqlite/transaction.py",
        "store/sqlite/write_gate.py",
    ),
    "statements": (
        "store/postgres/sql/record.sql",
        "store/postgres/sql/settle.sql",
        "store/postgres/sql/work.sql",
        "store/sqlite/sql/record.sql",
        "store/sqlite/sql/settle.sql",
        "store/sqlite/sql/work.sql",
    ),
}
"""The core: the patterns of its files within the package, by part."""
STATEMENTS: Final = PARTS["statements"]
MODULES: Final = tuple(
    pattern for patterns in PARTS.values() for pattern in patterns if pattern.endswith(".py")
)

# Tests that run the core in their own process: lines that run elsewhere are not traced.
TESTS: Final = (
    "tests/conformance",
    "tests/unit",
    "tests/integration/test_abandoned_calls.py",
    "tests/integration/test_batch_handlers.py",
    "tests/integration/test_effects_api.py",
    "tests/integration/test_failures.py",
    "tests/integration/test_filters.py",
    "tests/integration/test_forgotten_await.py",
    "tests/integration/test_handlers.py",
    "tests/integration/test_idle_transactions.py",
    "tests/integration/test_inline_limits.py",
    "tests/integration/test_inline_outcomes.py",
    "tests/integration/test_misuse.py",
    "tests/integration/test_odd_errors.py",
    "tests/integration/test_ordering_keys.py",
    "tests/integration/test_outside_effects.py",
    "tests/integration/test_overload.py",
    "tests/integration/test_rejections.py",
    "tests/integration/test_retries.py",
    "tests/integration/test_sharing.py",
    "tests/integration/test_stale_events.py",
    "tests/integration/test_stale_overrides.py",
    "tests/integration/test_stubborn_handlers.py",
)

# Tests of senders, of the HTTP edge, of archives and of weeks of retention: they do not run the
# core, or only as a means, and take long.
LEFT_OUT: Final = (
    "*archive*",
    "*challenge*",
    "*coverage*",
    "*forward*",
    "*jwt*",
    "*migration*",
    "*object_store*",
    "*poolers*",
    "*redis*",
    "*restore*",
    "*payload_retention*",
    "*sign*",
    "test_retention.py",
    "test_sources.py",
    "*standby*",
    "*unpacking*",
    "*vendor*",
    "*verify*",
    "*weeks*",
)


def files(patterns: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of the package that match the patterns, relative to the root."""
    for pattern in patterns:
        found = sorted((ROOT / PACKAGE).glob(pattern))
        assert found, f"no file matches {pattern}"
        yield from (path.relative_to(ROOT) for path in found if path.name != "__init__.py")


def files_of_tests() -> Iterator[str]:
    """Yield the test files, relative to the root."""
    for name in TESTS:
        top = ROOT / name
        assert top.exists(), f"{name} is gone"
        for path in sorted(top.glob("test_*.py")) if top.is_dir() else [top]:
            if not any(path.match(pattern) for pattern in LEFT_OUT):
                yield str(path.relative_to(ROOT))
