"""The delay between attempts, and the errors that are worth another one."""

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
    ("attempt", "delay"), [(1, 2.0), (2, 4.0), (3, 8.0), (6, 64.0), (7, 100.0), (8, 100.0)]
)
def test_the_delay_doubles_up_to_its_maximum(attempt: int, delay: float) -> None:
    assert backoff_seconds(attempt, 2, 100, highest) == delay


@pytest.mark.parametrize("attempt", [1, 5, 50])
def test_jitter_takes_off_at_most_half(attempt: int) -> None:
    delay = backoff_seconds(attempt, 2, 100, highest)
    assert backoff_seconds(attempt, 2, 100, lowest) == delay / 2
    assert backoff_seconds(attempt, 2, 100, lambda: 0.5) == delay * 0.75


@pytest.mark.parametrize("attempt", [10**9, 0, -5])
def test_any_attempt_number_has_a_delay(attempt: int) -> None:
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
