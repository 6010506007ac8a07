"""Declarations of outside effects are checked when they are made."""

from typing import Any

import pytest

from onceward import Inbox
from onceward.errors import ConfigurationError, EffectNotApplied
from onceward.model.effects import reserved_key_fault
from onceward.work.outside.declaration import OutsideEffects, make_effect


async def charge(amount: int) -> int:
    return amount


async def refund(amount: int, *, idempotency_key: str) -> str:
    return f"{idempotency_key}:{amount}"


def test_a_declaration_has_the_functions_name_and_its_own_policy() -> None:
    effect = make_effect(refund, retry_safe_for="24h", not_applied=OSError, timeout_seconds=3)
    assert (effect.name, effect.retry_safe_seconds, effect.timeout_seconds) == ("refund", 86400, 3)
    assert effect.not_applied == (EffectNotApplied, OSError)
    assert effect.has_policy
    assert not make_effect(charge).has_policy


def test_durations_have_a_unit(subtests: pytest.Subtests) -> None:
    for text, seconds in (("90s", 90), ("30m", 1800), ("1h", 3600), ("7d", 604800)):
        with subtests.test(text=text):
            assert make_effect(refund, retry_safe_for=text).retry_safe_seconds == seconds


def test_a_function_is_given_the_key_if_it_names_it() -> None:
    assert make_effect(refund).takes_key
    assert not make_effect(charge).takes_key


FAULTY_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"retry_safe_for": "24"}, "use a duration such as '24h'"),
    ({"retry_safe_for": 24}, "use a duration such as '24h'"),
    ({"retry_safe_for": "0s"}, "use a duration such as '24h'"),
    ({"retry_safe_for": "400d"}, "use a duration such as '24h'"),
    ({"timeout_seconds": 0}, "use a number of seconds, more than 0"),
    ({"timeout_seconds": float("nan")}, "use a number of seconds, more than 0"),
    ({"timeout_seconds": True}, "use a number of seconds, more than 0"),
    ({"reconcile": "ask"}, "use a function"),
    ({"not_applied": "OSError"}, "use an exception class, or a tuple of them"),
    ({"not_applied": (OSError, 5)}, "use an exception class, or a tuple of them"),
    ({"not_applied": Exception}, "but not Exception"),
    ({"retry_safe_for": "24h"}, "add a parameter idempotency_key"),
    ({"not_applied": KeyboardInterrupt}, "use an exception class, or a tuple of them"),
    ({"name": ""}, "there is no name"),
    ({"name": "x" * 300}, "the name is 300 bytes long"),
    ({"timeout": 5}, "did you mean 'timeout_seconds'"),
    ({"retry_safe_for": "1h", "reconcile": refund}, "exclude each other"),
]


def test_a_faulty_option_is_refused_with_what_to_use(subtests: pytest.Subtests) -> None:
    for options, fault in FAULTY_OPTIONS:
        with subtests.test(options=options):
            with pytest.raises(ConfigurationError) as raised:
                make_effect(charge, **options)
            assert fault in str(raised.value)
            assert "test_outside_effects.py" in str(raised.value)


def test_a_name_stands_for_one_function() -> None:
    effects = OutsideEffects()
    effects.add(make_effect(charge))
    with pytest.raises(ConfigurationError, match=r"effect 'charge' .* is already in use"):
        effects.add(make_effect(refund, name="charge"))


def test_the_inbox_returns_the_function_as_it_is() -> None:
    inbox = Inbox()
    assert inbox.effect(timeout_seconds=5)(charge) is charge


def test_the_decorator_needs_parentheses_and_a_function() -> None:
    with pytest.raises(ConfigurationError, match="above a function"):
        Inbox().effect()(5)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="in parentheses"):
        Inbox().effect(charge)  # type: ignore[arg-type]


def test_a_key_that_cannot_be_passed_by_name_is_no_key() -> None:
    def pay(idempotency_key: str, /) -> str:
        return idempotency_key

    assert not make_effect(pay).takes_key
    with pytest.raises(ConfigurationError, match="add a parameter"):
        make_effect(pay, retry_safe_for="24h")


async def mail(to: str, subject: str = "", *, idempotency_key: str) -> None: ...


async def find_by_key(key: str) -> None: ...


async def find(key: str, to: str) -> None: ...


async def find_with_subject(key: str, to: str, subject: str) -> None: ...


async def find_any(key: str, *arguments: object, **named: object) -> None: ...


async def find_by_name(key: str, **named: object) -> None: ...


def test_a_reconcile_that_cannot_take_the_arguments_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_effect(mail, reconcile=find_by_key)
    (fault,) = refused.value.faults
    assert fault.endswith(
        "reconcile gets the key of the effect and the arguments of the function; write "
        "find_by_key(key, to, subject)"
    )


def test_a_reconcile_that_may_take_the_arguments_is_accepted(subtests: pytest.Subtests) -> None:
    reconciles: list[Any] = [find, find_with_subject, find_any, find_by_name]
    for reconcile in reconciles:
        with subtests.test(reconcile.__name__):
            assert make_effect(mail, reconcile=reconcile).reconcile is reconcile


def test_only_the_beginning_of_a_key_is_reserved() -> None:
    assert reserved_key_fault("onceward:evt_1") is not None
    for key in ("onceward", "evt_1 onceward:", "Onceward:evt_1"):
        assert reserved_key_fault(key) is None
