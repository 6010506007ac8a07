"""The delay before a retry, and which errors are retried at all."""

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
    ("attempt", "seconds"), [(1, 2.0), (2, 4.0), (3, 8.0), (6, 64.0), (7, 100.0), (8, 100.0)]
)
def test_the_delay_doubles_up_to_its_maximum(attempt: int, seconds: float) -> None:
    assert backoff_seconds(attempt, 2, 100, highest) == seconds


@pytest.mark.parametrize("attempt", [1, 5, 50])
def test_jitter_shortens_the_delay_by_at_most_half(attempt: int) -> None:
    longest = backoff_seconds(attempt, 2, 100, highest)
    assert backoff_seconds(attempt, 2, 100, lowest) == longest / 2
    assert backoff_seconds(attempt, 2, 100, lambda: 0.5) == longest * 0.75


@pytest.mark.parametrize("attempt", [10**9, 0, -5])
def test_any_attempt_number_gives_a_delay_within_the_limits(attempt: int) -> None:
    assert 1 <= backoff_seconds(attempt, 2, 100, lowest) <= 50


@pytest.mark.parametrize(
    "error", [PermanentError("no"), MalformedPayload("no"), TransactionMisuse("no")]
)
def test_a_permanent_error_is_not_transient_even_in_a_group(error: Exception) -> None:
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
