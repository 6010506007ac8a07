"""The internals of psycopg on which `store/postgres/waiting.py` relies.

When one of these tests fails with a new psycopg, adapt that module, or keep the version outside
the tested range: Onceward then uses psycopg's own wait.
"""

import inspect
import logging
from pathlib import Path

import psycopg
import pytest
from psycopg import errors, generators, pq, waiting
from psycopg._preparing import PrepareManager
from psycopg.waiting import Ready, Wait

from onceward.settings import Settings
from onceward.store.postgres.driver import HIGHEST_TESTED, LOWEST_TESTED, connection_class
from onceward.store.postgres.session import SessionConnection
from onceward.store.postgres.waiting import FastWaitConnection, _PsycopgStatements

ROOT = Path(__file__).parents[2]


def parameters(function: object) -> dict[str, inspect.Parameter]:
    assert callable(function)
    return dict(inspect.signature(function).parameters)


def required(function: object) -> list[str]:
    return [
        name
        for name, parameter in parameters(function).items()
        if parameter.default is inspect.Parameter.empty
    ]


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def test_wait_takes_a_generator_an_interval_and_at_most_a_timeout() -> None:
    assert inspect.iscoroutinefunction(psycopg.AsyncConnection.wait)
    assert required(psycopg.AsyncConnection.wait) == ["self", "gen"]
    extra = parameters(psycopg.AsyncConnection.wait).keys() - {"self", "gen", "interval"}
    assert extra <= {"timeout"}, f"psycopg {psycopg.__version__} passes more to wait(): {extra}"


def test_the_override_of_wait_accepts_what_psycopg_passes() -> None:
    ours, theirs = map(parameters, (FastWaitConnection.wait, psycopg.AsyncConnection.wait))
    assert theirs.keys() <= ours.keys()
    assert required(FastWaitConnection.wait) == required(psycopg.AsyncConnection.wait)


def test_close_takes_no_arguments() -> None:
    assert inspect.iscoroutinefunction(psycopg.AsyncConnection.close)
    assert list(parameters(psycopg.AsyncConnection.close)) == ["self"]


def test_a_listener_can_wait_for_a_limited_time() -> None:
    assert "timeout" in parameters(psycopg.AsyncConnection.notifies)


def test_a_statement_can_be_cancelled_with_a_timeout() -> None:
    assert inspect.iscoroutinefunction(psycopg.AsyncConnection.cancel_safe)
    assert "timeout" in parameters(psycopg.AsyncConnection.cancel_safe)
    assert required(psycopg.AsyncConnection.cancel_safe) == ["self"]


def test_a_cancelled_statement_can_be_waited_for() -> None:
    assert inspect.iscoroutinefunction(waiting.wait_async)
    assert required(waiting.wait_async) == ["gen", "fileno"]
    assert "interval" in parameters(waiting.wait_async)


@pytest.mark.parametrize("name", ["socket", "transaction_status", "finish"])
def test_the_libpq_wrapper_has_what_the_wait_reads(name: str) -> None:
    assert hasattr(pq.PGconn, name), f"psycopg {psycopg.__version__} has no pgconn.{name}"


def test_a_message_can_be_sent_without_a_cursor() -> None:
    assert "send_query" in dir(pq.PGconn)
    assert required(generators.execute) == ["pgconn"]
    assert {"result", "encoding"} <= parameters(errors.error_from_result).keys()
    assert {"nfields", "ntuples", "get_value", "status", "command_status"} <= set(dir(pq.PGresult))
    assert (int(pq.ExecStatus.TUPLES_OK), int(pq.ExecStatus.FATAL_ERROR)) == (2, 7)


def test_statements_that_psycopg_forgets_are_deallocated_by_name() -> None:
    """DEALLOCATE ALL, for which None stands, would deallocate Onceward's statements as well."""
    statements = _PsycopgStatements()
    statements._names[b"SELECT 1", ()] = b"_pg3_0"
    statements._counts[b"SELECT 2", ()] = 1
    assert statements.clear()
    assert (list(statements._to_flush), statements._names, statements._counts) == (
        [b"_pg3_0"],
        {},
        {},
    )
    theirs = PrepareManager()
    theirs._names[b"SELECT 1", ()] = b"_pg3_0"
    assert theirs.clear()
    assert list(theirs._to_flush) == [None]


def test_states_are_flags_of_read_and_write() -> None:
    assert (int(Wait.R), int(Wait.W), int(Wait.RW)) == (1, 2, 3)
    assert (int(Ready.R), int(Ready.W), int(Ready.RW)) == (1, 2, 3)
    assert pq.TransactionStatus.ACTIVE.name == "ACTIVE"


def test_the_tested_range_is_the_one_that_the_project_declares() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pyproject = (ROOT / "pyproject.toml").read_text()
    constraints = (ROOT / "constraints.txt").read_text()
    lowest, highest = map(version_text, (LOWEST_TESTED, HIGHEST_TESTED))
    assert f"\nPSYCOPG_VERSIONS := {lowest} {highest}\n" in makefile
    assert f'"psycopg[binary]>={lowest}"' in pyproject
    assert f"\npsycopg=={highest}\n" in constraints


@pytest.mark.parametrize("version", [LOWEST_TESTED, (3, 2, 13), HIGHEST_TESTED])
def test_a_tested_version_gets_the_fast_wait(
    version: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    chosen = connection_class(fast_wait=True, version=version_text(version))
    assert chosen is FastWaitConnection
    assert caplog.records == []


@pytest.mark.parametrize("version", ["3.1.20", "3.2.2", "3.3.10", "3.4.0.dev1", "4.0"])
def test_an_untested_version_gets_the_wait_of_psycopg_and_a_warning(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert connection_class(fast_wait=True, version=version) is SessionConnection
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"psycopg {version} is outside the tested range" in record.getMessage()


def test_the_fast_wait_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    assert Settings().driver_fast_wait
    assert connection_class(fast_wait=False, version="9.9.9") is SessionConnection
    assert caplog.records == []


def test_the_session_leaves_the_wait_of_psycopg_alone() -> None:
    assert SessionConnection.wait is psycopg.AsyncConnection.wait
