"""The benchmarks notice wrong work: a handler that ran twice, or a job that was not marked."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bench.checks import check_work
from bench.contenders import handwritten_sqlite, onceward
from bench.contenders.interface import ContenderConfig
from bench.processes import TrialFailed
from bench.registry import BY_NAME, ONCEWARD_OWN, PGQUEUER
from bench.workloads import INSERT, STATEMENTS, UPDATE, CommittedWork, sqlite_file

LOOP = BY_NAME["loop-sqlite"]


@pytest.fixture
def config(tmp_path: Path) -> ContenderConfig:
    """Return a config whose database has three events of the loop, one of them done."""
    config = ContenderConfig(f"sqlite:///{tmp_path / 'bench.db'}")
    program = handwritten_sqlite.Program(config)
    program.create_tables()
    program.enqueue(3)
    with closing(program._connect()) as connection:
        assert program._run_batch(connection, 1) == 1
    return config


def execute(config: ContenderConfig, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(sqlite_file(config.database))) as file, file:
        file.execute(statement, values)


def book(config: ContenderConfig, event_id: str) -> None:
    with closing(sqlite3.connect(sqlite_file(config.database))) as file, file:
        file.execute(STATEMENTS[INSERT], {"event_id": event_id, "account": 1, "amount": 1})


def test_work_that_was_done_once_passes(config: ContenderConfig) -> None:
    check_work(LOOP, config)


def test_a_handler_that_ran_twice_fails_the_trial(config: ContenderConfig) -> None:
    for _ in range(2):
        book(config, "evt_1")

    with pytest.raises(TrialFailed, match="1 events ran more than once: evt_1"):
        check_work(BY_NAME[PGQUEUER], config)
    with (
        CommittedWork.open(config.database) as committed,
        pytest.raises(TrialFailed, match="1 commits repeat an event"),
    ):
        committed.commit_times()


def test_a_handler_without_its_mark_fails_the_trial(config: ContenderConfig) -> None:
    book(config, "evt_1")

    with pytest.raises(TrialFailed, match="2 handlers committed, but 1 jobs are done"):
        check_work(LOOP, config)
    check_work(BY_NAME[PGQUEUER], config)  # its job ends in a commit of its own


def test_an_update_without_its_mark_fails_the_trial(config: ContenderConfig) -> None:
    update = config.with_changes(workload=UPDATE)
    execute(config, "UPDATE accounts SET balance = 1 WHERE id = 1")

    check_work(LOOP, update)
    execute(config, "UPDATE accounts SET balance = 2 WHERE id = 1")
    with pytest.raises(TrialFailed, match="2 handlers committed, but 1 jobs are done"):
        check_work(LOOP, update)


def test_a_failed_attempt_of_onceward_fails_the_trial(tmp_path: Path) -> None:
    config = ContenderConfig(f"sqlite:///{tmp_path / 'bench.db'}")
    onceward.Program(config).create_tables()
    check_work(BY_NAME[ONCEWARD_OWN], config)

    execute(
        config,
        "INSERT INTO onceward_attempts (job, number, worker, started_at, ended_at, error) "
        "VALUES (1, 1, 'w', 0, 0, 'it failed')",
    )
    with pytest.raises(TrialFailed, match="1 attempts failed"):
        check_work(BY_NAME[ONCEWARD_OWN], config)
