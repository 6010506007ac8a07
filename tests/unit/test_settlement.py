"""The settlement policy decides whether a failed job is retried, postponed or failed."""

from typing import Any

import pytest

from onceward.errors import (
    MalformedPayload,
    OutcomeUnknown,
    PermanentError,
    RetryLater,
    StoreUnavailable,
)
from onceward.model.jobs import Fail, FailureType, Postpone, Reschedule
from onceward.work.settlement import MAX_DELAY_SECONDS, SettlementPolicy

POLICY = SettlementPolicy(
    base_seconds=2, max_seconds=100, random=lambda: 1.0, secrets=["a-known-secret"]
)


def settle(error: Exception, attempts: int = 0) -> Reschedule | Postpone | Fail:
    return POLICY.decide(error, attempts=attempts, max_attempts=3)


def delay(error: Exception) -> float:
    settlement = settle(error)
    assert isinstance(settlement, Reschedule)
    return settlement.delay_seconds


@pytest.mark.parametrize(("attempts", "seconds"), [(0, 2.0), (1, 4.0)])
def test_a_transient_error_is_retried_with_a_growing_delay(attempts: int, seconds: float) -> None:
    assert settle(ValueError("no"), attempts) == Reschedule(seconds, "ValueError: no")


@pytest.mark.parametrize("attempts", [0, 2, 9])
def test_an_unavailable_store_postpones_a_job_without_an_attempt(attempts: int) -> None:
    assert settle(StoreUnavailable("down"), attempts) == Postpone(2.0, "down")


def test_an_unknown_commit_outcome_counts_as_an_attempt() -> None:
    assert settle(OutcomeUnknown("lost")) == Reschedule(2.0, "lost")


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


def test_a_handler_sets_the_delay_with_retry_later() -> None:
    assert settle(RetryLater(90, "the bank is closed")) == Reschedule(90.0, "the bank is closed")


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
def test_the_delay_of_retry_later_is_bounded(requested: Any, delay_seconds: float) -> None:
    assert delay(RetryLater(requested)) == delay_seconds


def test_the_first_error_of_a_group_settles_the_group() -> None:
    group = ExceptionGroup("in tasks", [RetryLater(7, "busy"), ValueError("no")])
    assert settle(group) == Reschedule(7.0, "busy")


def test_a_permanent_error_in_a_group_settles_the_group() -> None:
    inner = ExceptionGroup("inner", [PermanentError("no such plan")])
    group = ExceptionGroup("outer", [ValueError("no"), inner])
    assert settle(group) == Fail(FailureType.PERMANENT, "no such plan")


def test_a_secret_added_after_the_start_is_redacted() -> None:
    secrets: list[str | bytes] = []
    policy = SettlementPolicy(base_seconds=2, max_seconds=100, random=lambda: 1.0, secrets=secrets)
    secrets.append("a-secret-of-today")
    settlement = policy.decide(ValueError("a-secret-of-today"), attempts=0, max_attempts=3)
    assert settlement == Reschedule(2.0, "ValueError: [redacted]")


def test_errors_are_redacted() -> None:
    error = ValueError("jane@mail.example sent a-known-secret\x1b[0m")
    assert settle(error) == Reschedule(2.0, "ValueError: [redacted] sent [redacted]\\x1b[0m")
