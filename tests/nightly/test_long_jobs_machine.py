"""The stores behave as the model of the queue predicts, ten times as often as in each change."""

from pathlib import Path

import pytest

from tests.database_pool import DatabasePool
from tests.property.test_jobs_machine import check_postgres, check_sqlite


def test_sqlite_matches_the_model(tmp_path: Path) -> None:
    check_sqlite(tmp_path, examples=200)


def test_postgresql_matches_the_model(
    postgres_pool: DatabasePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_postgres(postgres_pool, monkeypatch, examples=80)
