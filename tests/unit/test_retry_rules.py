"""The option ``retry=`` of handlers and sources is checked when it is configured."""

import asyncio
from typing import Any

import pytest

from onceward import Inbox, PermanentError, Retry, RetryLater
from onceward.errors import ConfigurationError, MalformedPayload, StoreUnavailable

FORM = "write retry=Retry(60, 3600) or retry={ConnectionError: Retry(60, 60), KeyError: None}"
RULE_FORM = "write Retry(60, 3600), or None if a retry cannot help"
FIRST_OF_GROUP = "the first error of a group decides; name the class of that error"


def faults_of_retry(*delays: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        Retry(*delays)
    return list(caught.value.faults)


async def notify() -> None:
    pass


NOTIFY = f"handler 'notify' (tests/unit/test_retry_rules.py:{notify.__code__.co_firstlineno})"


def test_a_delay_must_be_a_number_above_zero(subtests: pytest.Subtests) -> None:
    for seconds in (0, -1, "60", True, float("nan"), float("inf"), 1e9, [60]):
        with subtests.test(seconds=seconds):
            limits = "write a number above 0, at most 366 days"
            assert faults_of_retry(seconds) == [f"Retry: base_seconds is {seconds!r}; {limits}"]
            assert faults_of_retry(None, seconds) == [
                f"Retry: max_seconds is {seconds!r}; {limits}"
            ]
            assert len(faults_of_retry(seconds, seconds)) == 2


def test_a_delay_may_be_as_long_as_the_limit() -> None:
    year = 366 * 86_400
    assert Retry(year, year).delays(1, 3600) == (year, year)


def test_the_first_delay_must_not_exceed_the_longest() -> None:
    (fault,) = faults_of_retry(60, 30)
    assert fault == (
        "Retry: base_seconds is 60, more than max_seconds, 30; "
        "for a constant delay write Retry(60, 60)"
    )


def test_a_delay_that_is_left_open_comes_from_the_settings() -> None:
    assert Retry().delays(1, 3600) == (1, 3600)
    assert Retry(max_seconds=60).delays(1, 3600) == (1, 60)
    assert Retry(60, 60).delays(1, 3600) == (60, 60)


WRONG_OPTIONS: dict[str, tuple[Any, str]] = {
    "a number": (60, f"retry is 60; {FORM}"),
    "a text": ("fast", f"retry is 'fast'; {FORM}"),
    "a class": (Retry, f"retry is <class 'onceward.model.retry.Retry'>; {FORM}"),
    "a class of errors": (ValueError, f"retry is <class 'ValueError'>; {FORM}"),
    "a key that is a text": (
        {"ValueError": None},
        f"retry: 'ValueError' is not a subclass of Exception; {FORM}",
    ),
    "a key that is an instance": (
        {ValueError("no"): None},
        f"retry: ValueError('no') is not a subclass of Exception; {FORM}",
    ),
    "a key that is another class": (
        {int: Retry()},
        f"retry: <class 'int'> is not a subclass of Exception; {FORM}",
    ),
    "a key that handlers do not raise": (
        {asyncio.CancelledError: Retry()},
        f"retry: {asyncio.CancelledError!r} is not a subclass of Exception; {FORM}",
    ),
    "a rule that is a number": (
        {ValueError: 60},
        f"retry: the rule for ValueError is 60; {RULE_FORM}",
    ),
    "a rule for a permanent error": (
        {MalformedPayload: Retry()},
        "retry: a rule for MalformedPayload has no effect: it always fails the job at once",
    ),
    "a rule for RetryLater": (
        {RetryLater: Retry()},
        "retry: a rule for RetryLater has no effect: it sets its own delay",
    ),
    "a rule for the store": (
        {StoreUnavailable: None},
        "retry: a rule for StoreUnavailable has no effect: it never counts as an attempt",
    ),
    "a rule for a group": (
        {ExceptionGroup: Retry()},
        f"retry: a rule for ExceptionGroup has no effect: {FIRST_OF_GROUP}",
    ),
}


def test_a_wrong_option_is_refused_with_the_right_form(subtests: pytest.Subtests) -> None:
    for name, (option, fault) in WRONG_OPTIONS.items():
        with subtests.test(name):
            inbox = Inbox()
            with pytest.raises(ConfigurationError) as caught:
                inbox.on("*", retry=option)(notify)
            assert caught.value.faults == (f"{NOTIFY}: {fault}",)
            with pytest.raises(ConfigurationError) as caught:
                inbox.source("shop", preset="hmac", unsigned=True, retry=option)
            assert caught.value.faults == (f"source 'shop': {fault}",)


def test_all_faults_of_an_option_are_reported_together() -> None:
    rules: Any = {"ValueError": None, OSError: 5, PermanentError: "never"}
    with pytest.raises(ConfigurationError) as caught:
        Inbox().on("*", max_attempts=0, retry=rules)(notify)
    assert len(caught.value.faults) == 5


@pytest.mark.parametrize("option", [None, {}])
def test_an_option_may_be_empty(option: Any) -> None:
    inbox = Inbox("sqlite:///x.db")
    inbox.on("*", retry=option)(notify)
    assert inbox.service().handlers["notify"].retry == {}


def test_a_later_change_of_the_mapping_has_no_effect() -> None:
    rules: dict[type[Exception], Retry | None] = {ValueError: None}
    inbox = Inbox("sqlite:///x.db")
    inbox.source("shop", preset="hmac", unsigned=True, retry=rules)
    rules[OSError] = None
    assert inbox.sources["shop"].retry == {ValueError: None}


def test_rules_that_cannot_work_with_the_settings_are_refused() -> None:
    inbox = Inbox("sqlite:///x.db", retry_base_seconds=10, retry_max_seconds=600)
    inbox.on("*", retry=Retry(900))(notify)
    inbox.source(
        "shop",
        preset="hmac",
        unsigned=True,
        retry={OSError: None, ValueError: Retry(max_seconds=5)},
    )
    with pytest.raises(ConfigurationError) as caught:
        inbox.service()
    of_handler, of_source = caught.value.faults
    assert of_handler == (
        f"{NOTIFY}: Retry(base_seconds=900) is above the setting retry_max_seconds, 600; "
        "pass both, for example Retry(900, 900)"
    )
    assert of_source == (
        "source 'shop': Retry(max_seconds=5) is below the setting retry_base_seconds, 10; "
        "pass both, for example Retry(5, 5)"
    )
