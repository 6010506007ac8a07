"""Under any sequence of operations, a store behaves as a model of the queue predicts."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from onceward.store.postgres import claiming
from tests.database_pool import DatabasePool
from tests.queue_machine import JobsMachine


def check(
    acquire: Callable[[], str], release: Callable[[str], None], *, examples: int, steps: int
) -> None:
    run_state_machine_as_test(
        lambda: JobsMachine(acquire(), release),  # type: ignore[arg-type] # a factory is accepted too
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def check_sqlite(folder: Path, *, examples: int) -> None:
    """Compare SQLite with the model."""
    numbers = itertools.count()

    def acquire() -> str:
        # Syncing is slow, and this test has no power cuts.
        return f"sqlite:///{folder}/{next(numbers)}.db?synchronous=off"

    check(acquire, lambda _: None, examples=examples, steps=50)


def check_postgres(pool: DatabasePool, monkeypatch: pytest.MonkeyPatch, *, examples: int) -> None:
    """Compare PostgreSQL with the model."""
    # Floors that rise at once, and no claim without them: jobs that come back must be above them.
    monkeypatch.setattr(claiming, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(claiming, "FULL_LOOK_SECONDS", math.inf)
    check(pool.acquire, pool.release, examples=examples, steps=50)


def test_sqlite_matches_the_model(tmp_path: Path) -> None:
    check_sqlite(tmp_path, examples=20)


def test_postgresql_matches_the_model(
    postgres_pool: DatabasePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_postgres(postgres_pool, monkeypatch, examples=8)
