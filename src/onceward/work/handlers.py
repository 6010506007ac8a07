"""Handlers: which events they want, what they are given, and one run of one job."""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, get_args, get_origin, get_type_hints

from onceward.errors import (
    ConfigurationError,
)
from onceward.model.events import Event, invalid_text_reason
from onceward.model.jobs import Route
from onceward.settings import Settings
from onceward.work.batching import HANDLER_SECONDS

_log = logging.getLogger("onceward.handle")
_GIVEN: Final = ("event", "tx", "effects")
_SHARED: Final = frozenset({"event", "tx"})
_PATTERN: Final = re.compile(r"\*|[^*]+(\.\*)?")
HandlerFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """A user's function for some event types, with a stable name."""

    name: str
    function: HandlerFunction
    routes: tuple[Route, ...]
    wants: frozenset[str]
    model: Any
    timeout_seconds: float | None
    max_attempts: int | None
    is_async: bool

    @property
    def can_share(self) -> bool:
        """Whether all that it does is in its transaction, as far as its signature tells.

        One with less time than all get in a shared transaction would not be broken off in time.
        """
        return self.wants == _SHARED and (self.timeout_seconds or math.inf) >= HANDLER_SECONDS

    def completed_by(self, settings: Settings) -> Handler:
        """The handler with the settings' values for what it leaves open."""
        return replace(
            self,
            timeout_seconds=self.timeout_seconds or settings.handler_timeout_seconds,
            max_attempts=self.max_attempts or settings.max_attempts,
        )


def make_handler(
    function: HandlerFunction,
    *,
    patterns: Iterable[str],
    source: str | None,
    name: str | None,
    model: Any,
    timeout_seconds: float | None,
    max_attempts: int | None,
) -> Handler:
    """Check a handler when it is defined. Raises ConfigurationError with every fault."""
    name = name or function.__name__
    faults = [*_signature_faults(function), *_pattern_faults(patterns := tuple(patterns))]
    if fault := invalid_text_reason(name):
        faults.append(f"its name {fault}")
    if timeout_seconds is not None and not timeout_seconds > 0:
        faults.append(f"timeout_seconds is {timeout_seconds}; it must be more than 0")
    if max_attempts is not None and max_attempts < 1:
        faults.append(f"max_attempts is {max_attempts}; it must be at least 1")
    if faults:
        raise ConfigurationError([f"Handler {name}: {fault}" for fault in faults])
    return Handler(
        name=name,
        function=function,
        routes=tuple(Route(pattern, source) for pattern in patterns),
        wants=frozenset(inspect.signature(function).parameters),
        model=model if model is not None else _annotated_model(function),
        timeout_seconds=timeout_seconds,
        max_attempts=max_attempts,
        is_async=inspect.iscoroutinefunction(function),
    )


def _signature_faults(function: HandlerFunction) -> Iterable[str]:
    inner = inspect.unwrap(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        yield "it yields, so that calling it would not run it"
    if inspect.iscoroutinefunction(inner) and not inspect.iscoroutinefunction(function):
        yield "an async function is wrapped in a plain one, which would not await it"
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in _GIVEN and parameter.default is parameter.empty:
            yield f"it asks for {parameter.name!r}; a handler is given {', '.join(_GIVEN)}"


def _pattern_faults(patterns: tuple[str, ...]) -> Iterable[str]:
    if not patterns:
        yield "it names no event type; write '*' for all"
    for pattern in patterns:
        if not _PATTERN.fullmatch(str(pattern)):
            yield f"{pattern!r} is not a pattern; write invoice.paid, invoice.* or *"
        elif fault := invalid_text_reason(pattern):
            yield f"the pattern {pattern[:40]!r} {fault}"


def _annotated_model(function: HandlerFunction) -> Any:
    """The model in ``event: Event[Model]``, or None."""
    try:
        hint = get_type_hints(function).get("event")
    except (NameError, TypeError) as error:
        if "event" not in getattr(function, "__annotations__", {}):
            return None
        msg = f"Handler {function.__name__}: its annotations cannot be read ({error}); pass model="
        raise ConfigurationError(msg) from error
    if get_origin(hint) is not Event:
        return None
    (model,) = get_args(hint)
    return None if model is Any else model
