"""An error of a handler becomes a settlement, with a text that is safe to store."""

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from onceward.errors import (
    HandlerTimeout,
    MalformedPayload,
    OutcomeUnknown,
    PermanentError,
    RetryLater,
    StoreUnavailable,
)
from onceward.model.jobs import Fail, FailureType, Postpone, Retry
from onceward.runtime.error_text import describe
from onceward.work.settlement import MAX_DELAY_SECONDS, SettlementPolicy

POLICY = SettlementPolicy(
    base_seconds=2, max_seconds=100, random=lambda: 1.0, secrets=["a-known-secret"]
)


def settle(error: Exception, attempts: int = 0) -> Retry | Postpone | Fail:
    return POLICY.decide(error, attempts=attempts, max_attempts=3)


def delay(error: Exception) -> float:
    settlement = settle(error)
    assert isinstance(settlement, Retry)
    return settlement.delay_seconds


@pytest.mark.parametrize(("attempts", "seconds"), [(0, 2.0), (1, 4.0)])
def test_a_transient_error_is_retried_with_a_growing_delay(attempts: int, seconds: float) -> None:
    assert settle(ValueError("no"), attempts) == Retry(seconds, "ValueError: no")


@pytest.mark.parametrize("attempts", [0, 2, 9])
def test_an_unavailable_store_counts_no_attempt(attempts: int) -> None:
    assert settle(StoreUnavailable("down"), attempts) == Postpone(2.0, "down")


def test_an_attempt_with_an_unknown_commit_counts() -> None:
    assert settle(OutcomeUnknown("lost")) == Retry(2.0, "lost")


@pytest.mark.parametrize("error", [ValueError("no"), RetryLater(5, "ValueError: no")])
def test_the_last_attempt_is_not_retried(error: Exception) -> None:
    assert settle(error, attempts=2) == Fail(FailureType.EXHAUSTED, "ValueError: no")
    assert settle(error, attempts=9) == Fail(FailureType.EXHAUSTED, "ValueError: no")


def test_a_permanent_error_fails_at_once() -> None:
    assert settle(MalformedPayload("amount is missing")) == Fail(
        FailureType.PERMANENT, "amount is missing"
    )


def test_the_last_attempt_can_fail_with_a_permanent_error() -> None:
    assert settle(PermanentError("no"), attempts=2) == Fail(FailureType.PERMANENT, "no")


def test_a_handler_can_choose_its_delay() -> None:
    assert settle(RetryLater(90, "the bank is closed")) == Retry(90.0, "the bank is closed")


@pytest.mark.parametrize(
    ("requested", "delay_seconds"),
    [
        (0, 0.0),
        (-5, 0.0),
        (float("-inf"), 0.0),
        (float("inf"), MAX_DELAY_SECONDS),
        (10**400, MAX_DELAY_SECONDS),
        (float("nan"), 2.0),
        ("soon", 2.0),
        (None, 2.0),
    ],
)
def test_the_delay_that_a_handler_chooses_is_limited(requested: Any, delay_seconds: float) -> None:
    assert delay(RetryLater(requested)) == delay_seconds


def test_a_group_is_settled_by_its_first_error() -> None:
    group = ExceptionGroup("in tasks", [RetryLater(7, "busy"), ValueError("no")])
    assert settle(group) == Retry(7.0, "busy")


def test_a_group_is_settled_by_the_permanent_error_in_it() -> None:
    inner = ExceptionGroup("inner", [PermanentError("no such plan")])
    group = ExceptionGroup("outer", [ValueError("no"), inner])
    assert settle(group) == Fail(FailureType.PERMANENT, "no such plan")


def test_a_secret_added_after_the_start_is_redacted() -> None:
    secrets: list[str | bytes] = []
    policy = SettlementPolicy(base_seconds=2, max_seconds=100, random=lambda: 1.0, secrets=secrets)
    secrets.append("a-secret-of-today")
    settlement = policy.decide(ValueError("a-secret-of-today"), attempts=0, max_attempts=3)
    assert settlement == Retry(2.0, "ValueError: [redacted]")


def test_errors_are_redacted() -> None:
    error = ValueError("jane@mail.example sent a-known-secret\x1b[0m")
    assert settle(error) == Retry(2.0, "ValueError: [redacted] sent [redacted]\\x1b[0m")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("customer"), "KeyError: 'customer'"),
        (ValueError(), "ValueError"),
        (PermanentError(), "PermanentError"),
        (HandlerTimeout("took longer than 30 s"), "took longer than 30 s"),
        (ValueError("it failed\nDETAIL: Key (name)=(Jane) exists"), "ValueError: it failed …"),
        (ValueError("\n it failed \n"), "ValueError: it failed"),
        (psycopg.OperationalError("connection lost"), "OperationalError: connection lost"),
    ],
)
def test_an_error_is_described_by_its_type_and_first_line(error: Exception, text: str) -> None:
    assert describe(error) == text


def test_a_database_error_is_described_by_its_primary_message() -> None:
    class UniqueViolation(Exception):
        diag = SimpleNamespace(message_primary='duplicate key in "accounts"')

    error = UniqueViolation('duplicate key in "accounts", Key (name)=(Jane) exists')
    assert describe(error) == 'UniqueViolation: duplicate key in "accounts"'


@pytest.mark.parametrize("diag", [None, 5, SimpleNamespace(message_primary=None)])
def test_a_diag_without_a_message_is_ignored(diag: object) -> None:
    class OddError(Exception):
        pass

    error = OddError("no")
    error.diag = diag  # type: ignore[attr-defined]
    assert describe(error) == "OddError: no"


def test_an_error_whose_text_cannot_be_read_is_described_by_its_type() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(BrokenError()) == "BrokenError: the error text cannot be read"
