"""The delay between attempts, and the errors that are worth another one."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Retry
from onceward.errors import (
    HandlerTimeout,
    LeaseLost,
    MalformedPayload,
    PermanentError,
    RetryLater,
    StoreUnavailable,
    TransactionMisuse,
)
from onceward.model.retry import RetryRules
from onceward.settings import Settings
from onceward.work.settling.retry import backoff_seconds, choose_rule, is_transient

DELAYS = st.floats(min_value=0.001, max_value=1e7)
HOUR_SECONDS = 3600


def no_jitter() -> float:
    return 0.0


def most_jitter() -> float:
    return 1.0


def test_the_delay_doubles_up_to_its_maximum(subtests: pytest.Subtests) -> None:
    for attempt, delay in ((1, 2.0), (2, 4.0), (3, 8.0), (6, 64.0), (7, 100.0), (8, 100.0)):
        with subtests.test(attempt=attempt):
            assert backoff_seconds(attempt, 2, 100, no_jitter) == delay


def test_jitter_takes_off_half_but_at_most_a_tenth_of_the_maximum(
    subtests: pytest.Subtests,
) -> None:
    for attempt, least in ((1, 1.0), (3, 4.0), (4, 8.0), (5, 22.0), (9, 90.0)):
        with subtests.test(attempt=attempt):
            whole = backoff_seconds(attempt, 2, 100, no_jitter)
            assert backoff_seconds(attempt, 2, 100, most_jitter) == least
            assert backoff_seconds(attempt, 2, 100, lambda: 0.5) == (whole + least) / 2


@pytest.mark.parametrize("attempt", [10**9, 0, -5])
def test_any_attempt_number_has_a_delay(attempt: int) -> None:
    assert 1 <= backoff_seconds(attempt, 2, 100, most_jitter) <= 90


@given(attempt=st.integers(1, 200), delays=st.tuples(DELAYS, DELAYS), random=st.floats(0.0, 1.0))
def test_a_delay_stays_within_its_bounds(
    attempt: int, delays: tuple[float, float], random: float
) -> None:
    base, maximum = sorted(delays)
    whole = backoff_seconds(attempt, base, maximum, no_jitter)
    delay = backoff_seconds(attempt, base, maximum, lambda: random)
    assert base <= whole <= maximum
    assert max(whole / 2, whole - maximum / 10) <= delay <= whole


@given(delays=st.tuples(DELAYS, DELAYS), random=st.floats(0.0, 1.0))
def test_delays_never_shrink_from_one_attempt_to_the_next(
    delays: tuple[float, float], random: float
) -> None:
    base, maximum = sorted(delays)
    all_delays = [backoff_seconds(n, base, maximum, lambda: random) for n in range(1, 80)]
    assert all(earlier <= later for earlier, later in pairwise(all_delays))
    assert all_delays[-1] == all_delays[-2]


@given(base=st.floats(0.001, 1.0), maximum=DELAYS, higher=DELAYS, attempt=st.integers(1, 80))
def test_a_higher_maximum_never_shortens_the_longest_delay(
    base: float, maximum: float, higher: float, attempt: int
) -> None:
    low, high = sorted((max(maximum, base), max(higher, base)))
    shorter = backoff_seconds(attempt, base, low, no_jitter)
    assert shorter <= backoff_seconds(attempt, base, high, no_jitter)


def test_the_default_attempts_last_for_a_day_with_any_jitter() -> None:
    settings = Settings()
    base, maximum = settings.retry_base_seconds, settings.retry_max_seconds
    attempts = range(1, settings.max_attempts)  # the last attempt has no delay after it
    shortest = sum(backoff_seconds(n, base, maximum, most_jitter) for n in attempts)
    longest = sum(backoff_seconds(n, base, maximum, no_jitter) for n in attempts)
    assert 24 * HOUR_SECONDS <= shortest < longest <= 29 * HOUR_SECONDS
    assert (base, maximum) == (1.0, HOUR_SECONDS)


# Which rule applies.


def test_the_most_specific_class_of_an_error_has_the_rule() -> None:
    rules = {Exception: Retry(1), OSError: Retry(2), ConnectionError: None}
    assert choose_rule(ConnectionResetError(), rules) is None
    assert choose_rule(FileNotFoundError(), rules) == Retry(2)
    assert choose_rule(ValueError(), rules) == Retry(1)


def test_an_error_with_two_bases_has_the_rule_of_the_first() -> None:
    class Both(KeyError, OSError):
        pass

    assert choose_rule(Both(), {OSError: Retry(1), KeyError: Retry(2)}) == Retry(2)


def test_the_first_layer_with_a_rule_for_the_error_wins() -> None:
    handler: RetryRules = {OSError: Retry(1)}
    source: RetryRules = {ConnectionError: Retry(2), ValueError: None}
    assert choose_rule(ConnectionError(), handler, source) == Retry(1)
    assert choose_rule(ValueError(), handler, source) is None
    assert choose_rule(KeyError(), handler, source) == Retry()


# Which errors are transient.


@pytest.mark.parametrize(
    "error", [PermanentError("no"), MalformedPayload("no"), TransactionMisuse("no")]
)
def test_a_permanent_error_is_not_transient_even_in_a_group(error: Exception) -> None:
    assert not is_transient(error)
    assert not is_transient(ExceptionGroup("in tasks", [ValueError(), error]))
    assert not is_transient(ExceptionGroup("outer", [ExceptionGroup("inner", [error])]))


TRANSIENT: list[BaseException] = [
    ValueError(),
    OSError(),
    HandlerTimeout(),
    LeaseLost(),
    RetryLater(1),
    StoreUnavailable(),
    KeyboardInterrupt(),
    ExceptionGroup("in tasks", [ValueError()]),
]


def test_all_other_errors_are_transient(subtests: pytest.Subtests) -> None:
    for error in TRANSIENT:
        with subtests.test(error=error):
            assert is_transient(error)
