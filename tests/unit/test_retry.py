import pytest

from onceward.errors import (
    HandlerTimeout,
    LeaseLost,
    MalformedPayload,
    PermanentError,
    RetryLater,
    StoreUnavailable,
    TransactionMisuse,
)
from onceward.work.retry import backoff_seconds, is_transient


def lowest() -> float:
    return 0.0


def highest() -> float:
    return 1.0


@pytest.mark.parametrize(
    ("attempt", "whole"), [(1, 2.0), (2, 4.0), (3, 8.0), (6, 64.0), (7, 100.0), (8, 100.0)]
)
def test_the_wait_doubles_up_to_its_maximum(attempt: int, whole: float) -> None:
    assert backoff_seconds(attempt, 2, 100, highest) == whole


@pytest.mark.parametrize("attempt", [1, 5, 50])
def test_chance_takes_off_no_more_than_half(attempt: int) -> None:
    whole = backoff_seconds(attempt, 2, 100, highest)
    assert backoff_seconds(attempt, 2, 100, lowest) == whole / 2
    assert backoff_seconds(attempt, 2, 100, lambda: 0.5) == whole * 0.75


@pytest.mark.parametrize("attempt", [10**9, 0, -5])
def test_no_count_of_attempts_is_too_odd(attempt: int) -> None:
    assert 1 <= backoff_seconds(attempt, 2, 100, lowest) <= 50


@pytest.mark.parametrize(
    "error", [PermanentError("no"), MalformedPayload("no"), TransactionMisuse("no")]
)
def test_permanent_errors_are_permanent(error: Exception) -> None:
    assert not is_transient(error)
    assert not is_transient(ExceptionGroup("in tasks", [ValueError(), error]))
    assert not is_transient(ExceptionGroup("outer", [ExceptionGroup("inner", [error])]))


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        OSError(),
        HandlerTimeout(),
        LeaseLost(),
        RetryLater(1),
        StoreUnavailable(),
        KeyboardInterrupt(),
        ExceptionGroup("in tasks", [ValueError()]),
    ],
)
def test_all_other_errors_are_transient(error: BaseException) -> None:
    assert is_transient(error)
