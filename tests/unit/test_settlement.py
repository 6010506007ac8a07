"""The settlement policy decides whether a failed job is retried, postponed or failed."""

from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import (
    ConnectionLost,
    EffectPending,
    EffectUnknown,
    MalformedPayload,
    OutcomeUnknown,
    PermanentError,
    RetryLater,
    StoreUnavailable,
)
from onceward.model.jobs import Fail, FailureType, Postpone, Reschedule
from onceward.model.retry import MAX_DELAY_SECONDS, Retry
from onceward.work.settling.settlement import SettlementPolicy

POLICY = SettlementPolicy(
    base_seconds=2, max_seconds=100, random=lambda: 0.0, secrets=["a-known-secret"]
)
RULES = SettlementPolicy(
    base_seconds=2,
    max_seconds=100,
    random=lambda: 0.0,
    handler_rules={
        "notify": {ConnectionError: Retry(60, 60), ValueError: None},
        "strict": {Exception: None},
        "patient": {Exception: Retry(max_seconds=3)},
    },
    source_rules={"shop": {ConnectionError: Retry(5, 5), KeyError: Retry(7, 7)}},
)
NOT_LATER = "the seconds of RetryLater are not above 0, so the usual delay applies"


def settle(
    error: Exception, attempts: int = 0, *, connection_losses: int = 0
) -> Reschedule | Postpone | Fail:
    return POLICY.decide(
        error, attempts=attempts, max_attempts=3, connection_losses=connection_losses
    )


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


def test_an_unavailable_store_in_a_group_postpones_the_job() -> None:
    group = ExceptionGroup("in tasks", [StoreUnavailable("down"), ValueError("no")])
    assert settle(group) == Postpone(2.0, "down")


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), ConnectionLost("lost")])
def test_lost_connections_count_no_attempt_until_there_are_too_many_in_a_row(
    error: Exception,
) -> None:
    for losses in (1, 2, 3):  # docs/operating.md states the number
        assert settle(error, connection_losses=losses) == Postpone(2.0, "lost")
    assert settle(error, connection_losses=4) == Reschedule(2.0, "lost")


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


DELAYS: list[tuple[Any, float]] = [
    (0.01, 0.01),
    (0, 2.0),
    (-5, 2.0),
    (float("-inf"), 2.0),
    (-(10**400), 2.0),
    (timedelta(seconds=-1), 2.0),
    (float("inf"), MAX_DELAY_SECONDS),
    (10**400, MAX_DELAY_SECONDS),
    (timedelta(minutes=5), 300.0),
    (float("nan"), 2.0),
    ("soon", 2.0),
    (None, 2.0),
]


def test_the_delay_of_retry_later_is_bounded(subtests: pytest.Subtests) -> None:
    for requested, delay_seconds in DELAYS:
        with subtests.test(requested=requested):
            assert delay(RetryLater(requested)) == delay_seconds


def test_a_delay_that_is_not_above_zero_cannot_use_up_the_attempts() -> None:
    error = RetryLater(-1, "the bank is closed")
    text = f"the bank is closed; {NOT_LATER}"
    assert settle(error) == Reschedule(2.0, text)
    assert settle(error, attempts=1) == Reschedule(4.0, text)


def test_the_first_error_of_a_group_settles_the_group() -> None:
    group = ExceptionGroup("in tasks", [RetryLater(7, "busy"), ValueError("no")])
    assert settle(group) == Reschedule(7.0, "busy")


def test_a_permanent_error_in_a_group_settles_the_group() -> None:
    inner = ExceptionGroup("inner", [PermanentError("no such plan")])
    group = ExceptionGroup("outer", [ValueError("no"), inner])
    assert settle(group) == Fail(FailureType.PERMANENT, "no such plan")


# Retry rules of handlers and sources.


def settle_by_rule(
    error: Exception, handler: str, source: str = "", attempts: int = 0
) -> Reschedule | Postpone | Fail:
    return RULES.decide(error, attempts=attempts, max_attempts=3, handler=handler, source=source)


RULED: list[tuple[Exception, str, str, float]] = [
    (ConnectionError(), "notify", "shop", 60.0),
    (ConnectionRefusedError(), "notify", "", 60.0),
    (KeyError(), "notify", "shop", 7.0),
    (KeyError(), "notify", "", 2.0),
    (TypeError(), "notify", "shop", 2.0),
    (ConnectionError(), "other", "shop", 5.0),
    (ConnectionError(), "other", "other", 2.0),
    (ExceptionGroup("in tasks", [ConnectionError(), ValueError()]), "notify", "", 60.0),
]


def test_the_rule_of_the_handler_wins_over_the_source_and_the_settings(
    subtests: pytest.Subtests,
) -> None:
    for error, handler, source, seconds in RULED:
        with subtests.test(error=error, handler=handler, source=source):
            settlement = settle_by_rule(error, handler, source)
            assert isinstance(settlement, Reschedule)
            assert settlement.delay_seconds == seconds


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        UnicodeError("no"),
        ExceptionGroup("in tasks", [ValueError("no"), OSError()]),
    ],
)
def test_a_rule_of_none_fails_the_job_at_once(error: Exception) -> None:
    settlement = settle_by_rule(error, "notify", "shop")
    assert isinstance(settlement, Fail)
    assert settlement.failure_type is FailureType.PERMANENT


def test_a_rule_leaves_the_number_of_attempts_alone() -> None:
    settlement = settle_by_rule(ConnectionError(), "notify", attempts=2)
    assert isinstance(settlement, Fail)
    assert settlement.failure_type is FailureType.EXHAUSTED


@pytest.mark.parametrize(("attempts", "seconds"), [(0, 2.0), (1, 3.0)])
def test_a_rule_takes_an_open_delay_from_the_settings(attempts: int, seconds: float) -> None:
    settlement = settle_by_rule(ValueError("no"), "patient", attempts=attempts)
    assert settlement == Reschedule(seconds, "ValueError: no")


@pytest.mark.parametrize(
    ("requested", "seconds", "note"), [(90, 90.0, ""), (float("nan"), 2.0, f"; {NOT_LATER}")]
)
def test_retry_later_wins_over_the_rules(requested: float, seconds: float, note: str) -> None:
    error = RetryLater(requested, "the bank is closed")
    assert settle_by_rule(error, "strict") == Reschedule(seconds, f"the bank is closed{note}")


def test_a_permanent_error_wins_over_the_rules() -> None:
    assert settle_by_rule(PermanentError("no"), "patient") == Fail(FailureType.PERMANENT, "no")
    group = ExceptionGroup("in tasks", [ConnectionError(), PermanentError("no")])
    assert settle_by_rule(group, "notify") == Fail(FailureType.PERMANENT, "no")


def test_an_unavailable_store_wins_over_the_rules() -> None:
    assert settle_by_rule(StoreUnavailable("down"), "strict") == Postpone(2.0, "down")
    group = ExceptionGroup("in tasks", [StoreUnavailable("down")])
    assert settle_by_rule(group, "strict") == Postpone(2.0, "down")


# Redaction.


def test_a_secret_added_after_the_start_is_redacted() -> None:
    secrets: list[str | bytes] = []
    policy = SettlementPolicy(base_seconds=2, max_seconds=100, random=lambda: 0.0, secrets=secrets)
    secrets.append("a-secret-of-today")
    settlement = policy.decide(ValueError("a-secret-of-today"), attempts=0, max_attempts=3)
    assert settlement == Reschedule(2.0, "ValueError: [redacted]")


def test_errors_are_redacted() -> None:
    error = ValueError("jane@mail.example sent a-known-secret\x1b[0m")
    assert settle(error) == Reschedule(2.0, "ValueError: [redacted] sent [redacted]\\x1b[0m")


def test_a_call_under_way_postpones_the_job_until_its_deadline() -> None:
    settlement = POLICY.decide(EffectPending("under way", seconds=7), attempts=2, max_attempts=3)
    assert settlement == Postpone(7, "under way", is_outage=False)


@pytest.mark.parametrize(("attempts", "needs_operator"), [(0, True), (2, False)])
def test_an_unknown_outcome_names_the_effect_that_the_job_waits_for(
    attempts: int, *, needs_operator: bool
) -> None:
    error = EffectUnknown("unknown", effect=7, needs_operator=needs_operator)
    settlement = POLICY.decide(error, attempts=attempts, max_attempts=3)
    text = "unknown; resolve it: POST /admin/effects/7/resolve"
    assert settlement == Fail(FailureType.UNKNOWN_OUTCOME, text, effect=7)
