"""Outside effects: a function that acts on another system, and its policy, checked at start.

The policy says what to do when a crash, a timeout or an error hid whether a call was applied.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack

from onceward.errors import ConfigurationError, EffectNotApplied
from onceward.model.events import invalid_text_reason
from onceward.runtime.code_location import definition_line
from onceward.runtime.suggest import suggest_or_list
from onceward.runtime.time_units import UNIT_SECONDS

EffectFunction = Callable[..., Any]

KEY_PARAMETER: Final = "idempotency_key"
"""A function with a parameter of this name is given the key of the effect."""

_GENERATOR: Final = "the function is a generator: a call would not run its body"
_DURATION: Final = re.compile(r"(\d+)([smhd])")
MAX_SAFE_SECONDS: Final = 366 * 86_400


class EffectOptions(TypedDict, total=False):
    """The options of an outside effect. `Inbox.effect` documents them."""

    name: str | None
    timeout_seconds: float | None
    retry_safe_for: str | None
    reconcile: EffectFunction | None
    not_applied: type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class OutsideEffect:
    """A function that acts on another system, under a stable name."""

    name: str
    function: EffectFunction
    timeout_seconds: float | None = None
    retry_safe_seconds: float | None = None
    """For how long after the first call the other side recognises the key of a repeated call."""
    reconcile: EffectFunction | None = None
    """Asks the other side whether the effect was applied."""
    not_applied: tuple[type[BaseException], ...] = (EffectNotApplied,)
    """Errors of the function that mean: the call was certainly not applied."""
    is_built_in: bool = False
    """Whether it is Onceward's own, with keys that begin with `RESERVED_PREFIX`."""

    @property
    def has_policy(self) -> bool:
        """Whether an unknown outcome can be settled without a person."""
        return self.reconcile is not None or self.retry_safe_seconds is not None

    @property
    def takes_key(self) -> bool:
        """Whether the function names a parameter for the key of the effect."""
        return _takes_key(self.function)


class OutsideEffects:
    """The effects that an inbox declares. Any other function has no policy."""

    def __init__(self) -> None:
        self._by_function: dict[EffectFunction, OutsideEffect] = {}

    def add(self, effect: OutsideEffect) -> None:
        """Add an effect. Raise ConfigurationError if another function has its name."""
        for other in self._by_function.values():
            if other.name == effect.name:
                raise ConfigurationError(
                    f"{_label(effect.name, effect.function)}: the name is already in use by "
                    f"{_label(other.name, other.function)}; rename the function, or pass another "
                    "name="
                )
        self._by_function[effect.function] = effect

    def find(self, function: object) -> OutsideEffect | str:
        """Return the effect of a function, or the reason why it cannot be called as one."""
        if inspect.iscoroutine(function):
            function.close()  # else Python warns about it
            return (
                "pass the function and its arguments, effects.call(key, function, …), not the "
                "coroutine of function(…)"
            )
        if not callable(function):
            return "the second argument is the function to call: effects.call(key, function, …)"
        if effect := self._declared(function):
            return effect
        name = getattr(inspect.unwrap(function), "__name__", "")
        if not name or name == (lambda: None).__name__:
            return "the ledger stores the name of the function; pass a function with a name"
        if _is_generator(function):
            return _GENERATOR
        return OutsideEffect(name, function)

    def _declared(self, function: EffectFunction) -> OutsideEffect | None:
        try:
            return self._by_function.get(function)
        except TypeError:  # an object that has no hash
            return None


def make_effect(function: EffectFunction, **options: Unpack[EffectOptions]) -> OutsideEffect:
    """Check and build an effect. Raise ConfigurationError with every fault."""
    name = options.get("name")
    name = getattr(function, "__name__", "") if name is None else name
    faults = [*_option_faults(options), *_function_faults(function, name)]
    if options.get("retry_safe_for") is not None and not _takes_key(function):
        faults.append(
            "retry_safe_for repeats the call under its key, which the function does not take; add "
            f"a parameter {KEY_PARAMETER}, and send it to the other side"
        )
    reconcile = options.get("reconcile")
    if not faults and reconcile is not None:
        faults += _reconcile_faults(function, reconcile)
    if faults:
        raise ConfigurationError([f"{_label(name, function)}: {fault}" for fault in faults])
    retry_safe_for, not_applied = options.get("retry_safe_for"), options.get("not_applied", ())
    classes = not_applied if isinstance(not_applied, tuple) else (not_applied,)
    return OutsideEffect(
        name=name,
        function=function,
        timeout_seconds=options.get("timeout_seconds"),
        retry_safe_seconds=None if retry_safe_for is None else _seconds(retry_safe_for),
        reconcile=reconcile,
        not_applied=(EffectNotApplied, *classes),
    )


def _takes_key(function: EffectFunction) -> bool:
    """Return whether a function has a parameter for the key that can be passed by name."""
    parameter = inspect.signature(function).parameters.get(KEY_PARAMETER)
    return parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY


def _label(name: str, function: EffectFunction) -> str:
    line = definition_line(function)
    return f"effect {name!r}" if line is None else f"effect {name!r} ({line})"


def _function_faults(function: EffectFunction, name: str) -> Iterable[str]:
    if not name or name == (lambda: None).__name__:
        yield "there is no name; pass name=, which the ledger stores"
    elif fault := invalid_text_reason(name):
        yield f"the name {fault}"
    if _is_generator(function):
        yield _GENERATOR


def _reconcile_faults(function: EffectFunction, reconcile: EffectFunction) -> Iterable[str]:
    """Yield a fault if `reconcile` cannot take the key and the arguments of the function."""
    parameters = [
        each
        for name, each in inspect.signature(function).parameters.items()
        if name != KEY_PARAMETER and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    required = [each for each in parameters if each.default is each.empty]
    if _may_take(reconcile, required) or _may_take(reconcile, parameters):
        return
    names = ", ".join(("key", *(each.name for each in parameters)))
    yield (
        "reconcile gets the key of the effect and the arguments of the function; write "
        f"{getattr(reconcile, '__name__', 'reconcile')}({names})"
    )


def _may_take(reconcile: EffectFunction, parameters: Sequence[inspect.Parameter]) -> bool:
    """Return whether a function takes a key and such arguments, by position or by name."""
    try:
        signature = inspect.signature(reconcile)
    except ValueError:  # of a builtin
        return True
    by_position = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]
    by_name = [each for each in parameters if each.kind is not each.POSITIONAL_ONLY]
    for positional in (by_position, [each for each in parameters if each not in by_name]):
        named = {each.name: None for each in parameters if each not in positional}
        with suppress(TypeError):
            signature.bind(KEY_PARAMETER, *[None] * len(positional), **named)
            return True
    return False


def _is_generator(function: EffectFunction) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _option_faults(options: EffectOptions) -> Iterable[str]:
    names = EffectOptions.__optional_keys__
    for name, value in options.items():
        if name not in names:
            yield f"unknown option {name!r}{suggest_or_list(name, names, 'the options are')}"
        elif (check := _CHECKS.get(name)) and value is not None and not check[0](value):
            yield f"{name} is {value!r}; use {check[1]}"
    if options.get("reconcile") is not None and options.get("retry_safe_for") is not None:
        yield (
            "reconcile and retry_safe_for exclude each other: ask the other side, or repeat the "
            "call under its key"
        )


def _seconds(duration: str) -> float:
    """Return the seconds of a duration such as 24h; NaN if the text is none."""
    match = _DURATION.fullmatch(duration)
    return int(match[1]) * UNIT_SECONDS[match[2]] if match else math.nan


def _is_timeout(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_safe_time(value: object) -> bool:
    return isinstance(value, str) and 0 < _seconds(value) <= MAX_SAFE_SECONDS


def _are_errors(value: object) -> bool:
    classes = value if isinstance(value, tuple) else (value,)
    return all(
        isinstance(each, type) and issubclass(each, Exception) and each is not Exception
        for each in classes
    )


_CHECKS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "name": (lambda value: isinstance(value, str), "a text"),
    "timeout_seconds": (_is_timeout, "a number of seconds, more than 0"),
    "retry_safe_for": (_is_safe_time, "a duration such as '24h', '30m' or '7d'"),
    "reconcile": (callable, "a function"),
    "not_applied": (
        _are_errors,
        "an exception class, or a tuple of them, but not Exception: only of errors before the send",
    ),
}
"""Options whose values are checked, each with its check and with what to use. None is unset."""
