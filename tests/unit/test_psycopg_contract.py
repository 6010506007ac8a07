"""The internals of psycopg on which `store/postgres/waiting.py` relies, and the choice by them.

When a term of the contract is broken with a new psycopg, adapt that module. Until then Onceward
uses psycopg's own wait with it.
"""

import inspect
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import _preparing, generators, pq, waiting

from onceward.settings import Settings
from onceward.store.postgres.driver import HIGHEST_TESTED, LOWEST_TESTED, connection_class
from onceward.store.postgres.psycopg_contract import CONTRACT
from onceward.store.postgres.session import SessionConnection
from onceward.store.postgres.waiting import FastWaitConnection

ROOT = Path(__file__).parents[2]
PACKAGE = "onceward.store.postgres"


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    """Forget the choice, which is made once in a process."""
    connection_class.cache_clear()
    yield
    connection_class.cache_clear()


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


async def wait_with_another_argument(
    self: Any, gen: Any, interval: float = 0.1, flush: int = 0
) -> None: ...


async def close_with_an_argument(self: Any, seconds: float = 1) -> None: ...


async def wait_async_without_an_interval(gen: Any, fileno: int) -> None: ...


def discard_without_clear(self: Any, *_: Any) -> bool:
    self._to_flush.append(None)
    return True


def test_psycopg_keeps_the_contract(subtests: pytest.Subtests) -> None:
    for name, is_kept in CONTRACT.items():
        with subtests.test(name):
            assert is_kept()


CHANGES: list[tuple[object, str, object, str]] = [
    (psycopg.AsyncConnection, "wait", wait_with_another_argument, "wait()"),
    (psycopg.AsyncConnection, "close", close_with_an_argument, "close()"),
    (psycopg.AsyncConnection, "_timer", None, "attributes"),
    (waiting, "Ready", pq.ExecStatus, "wait states"),
    (waiting, "wait_async", wait_async_without_an_interval, "cancellation"),
    (generators, "execute", iter, "messages"),
    (
        _preparing.PrepareManager,
        "_should_discard",
        discard_without_clear,
        "prepared statements",
    ),
]


def test_a_patch_release_with_changed_internals_gets_the_wait_of_psycopg(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for owner, name, changed, term in CHANGES:
        connection_class.cache_clear()
        caplog.clear()
        with subtests.test(term), monkeypatch.context() as patch:
            patch.setattr(owner, name, changed, raising=False)
            assert connection_class(fast_wait=True, version="3.3.99") is SessionConnection
            (record,) = caplog.records
            assert record.levelno == logging.WARNING
            assert f"({term})" in record.getMessage()


def test_a_patch_release_that_lacks_internals_gets_the_wait_of_psycopg(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(_preparing, "PrepareManager")
    for module in ("waiting", "psycopg_contract"):
        monkeypatch.delitem(sys.modules, f"{PACKAGE}.{module}")
    assert connection_class(fast_wait=True, version="3.3.99") is SessionConnection
    (record,) = caplog.records
    assert "PrepareManager" in record.getMessage()


def test_a_listener_can_wait_for_a_limited_time() -> None:
    assert "timeout" in inspect.signature(psycopg.AsyncConnection.notifies).parameters


def test_the_tested_range_is_the_one_that_the_project_declares() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pyproject = (ROOT / "pyproject.toml").read_text()
    constraints = (ROOT / "constraints.txt").read_text()
    lowest, highest = map(version_text, (LOWEST_TESTED, HIGHEST_TESTED))
    assert f"\nPSYCOPG_VERSIONS := {lowest} {highest}\n" in makefile
    assert f'"psycopg[binary]>={lowest}"' in pyproject
    assert f"\npsycopg=={highest}\n" in constraints


def test_a_tested_minor_version_gets_the_fast_wait(
    caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for version in (version_text(LOWEST_TESTED), "3.2.99", version_text(HIGHEST_TESTED), "3.3.99"):
        with subtests.test(version=version):
            assert connection_class(fast_wait=True, version=version) is FastWaitConnection
            assert caplog.records == []


def test_an_untested_version_gets_the_wait_of_psycopg_and_one_warning(
    caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for version in ("3.1.20", "3.2.2", "3.4.0.dev1", "4.0"):
        caplog.clear()
        with subtests.test(version=version):
            for _ in range(2):  # for each store of a process
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
