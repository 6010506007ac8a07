"""The suite itself: each test runs on the stores and transports it is meant for."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.database import RawDatabase
from support.processes import ConditionTimeout, eventually, eventually_async
from tests.database_pool import DatabasePool

TESTS = Path(__file__).parent
CASES = {
    "conformance/test_record.py::test_a_payload_is_stored_byte_for_byte": {"sqlite", "postgres"},
    "integration/test_own_tables.py::test_the_job_fails_and_the_handler_runs_at_most_twice": {
        "sqlite",
        "postgres",
    },
    "integration/test_overload.py::test_a_blocked_ledger_gets_a_timely_503_and_recovers": {
        "streamed-sqlite",
        "direct-postgres",
        "uvicorn-sqlite",
    },
    "integration/test_retries.py::test_a_rule_of_none_fails_the_job_at_its_first_attempt": {
        "sqlite"
    },
}
"""Some tests of each kind, and their cases."""

ALTERATIONS = (
    "CREATE POLICY nobody ON onceward.jobs USING (false)",
    "ALTER TABLE onceward.jobs ADD COLUMN more int",
    "ALTER TABLE onceward.jobs ALTER COLUMN status DROP NOT NULL",
    "ALTER TABLE onceward.jobs ALTER COLUMN attempts SET DEFAULT 7",
    "ALTER TABLE onceward.audit DISABLE TRIGGER ALL",
    "ALTER TABLE onceward.jobs RENAME TO tasks",
    "GRANT SELECT ON onceward.jobs TO PUBLIC",
    "UPDATE onceward.migrations SET number = number + 1000",
    "CREATE TABLE onceward.others ()",
    "CREATE SCHEMA others",
    "CREATE SCHEMA others CREATE TABLE more ()",
    "CREATE FUNCTION onceward.one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
)


def test_each_kind_of_test_has_its_cases(subtests: pytest.Subtests) -> None:
    files = sorted({test.partition("::")[0] for test in CASES})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", *(TESTS / file for file in files)],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    for test, cases in CASES.items():
        with subtests.test(test):
            found = [line for line in lines if line.startswith(f"tests/{test}[")]
            assert {line.rpartition("[")[2].removesuffix("]") for line in found} == cases


def test_the_database_of_a_case_is_of_its_store(
    database_url: str, request: pytest.FixtureRequest
) -> None:
    store = request.node.callspec.params["database_url"]
    assert database_url.startswith({"sqlite": "sqlite:", "postgres": "postgresql:"}[store])


async def test_a_condition_that_does_not_come_true_is_a_failure() -> None:
    async def never() -> bool:
        return False

    with pytest.raises(ConditionTimeout, match="it happens: not within 0 s"):
        eventually(lambda: False, "it happens", 0)
    with pytest.raises(ConditionTimeout, match="it happens: not within 0 s"):
        await eventually_async(never, "it happens", 0)


def test_a_database_goes_to_the_next_test_without_its_rows(postgres_pool: DatabasePool) -> None:
    url = postgres_pool.acquire()
    RawDatabase(url).rows("INSERT INTO onceward.sources (name) VALUES ('shop')")
    postgres_pool.release(url)
    assert postgres_pool.acquire() == url
    assert RawDatabase(url).count("onceward.sources") == 0
    postgres_pool.release(url)


def test_an_altered_database_goes_to_no_other_test(
    postgres_pool: DatabasePool, subtests: pytest.Subtests
) -> None:
    for alteration in ALTERATIONS:
        with subtests.test(alteration):
            url = postgres_pool.acquire()
            RawDatabase(url).rows(alteration)
            postgres_pool.release(url)
            assert url not in postgres_pool.free
