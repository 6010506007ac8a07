"""Handlers: a function, its event types and its options, checked when they are defined."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from onceward.errors import ConfigurationError
from onceward.model.events import Event, invalid_text_reason
from onceward.model.jobs import Route
from onceward.settings import Settings
from onceward.work.arguments import ARGUMENTS, Argument, Build, resolve_arguments
from onceward.work.batching import SHARED_TIMEOUT_SECONDS

_PATTERN: Final = re.compile(r"\*|[^*]+(\.\*)?")
HandlerFunction = Callable[..., Any]
TransactionMode = Literal["own", "shared"]
"""Whether each job of a handler has its own transaction or may share one with other jobs."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A user's function for some event types, under a stable name."""

    name: str
    function: HandlerFunction
    routes: tuple[Route, ...]
    arguments: tuple[tuple[str, Build], ...]
    """Its parameters, each with the function that builds the argument."""
    model: Any
    timeout_seconds: float | None
    max_attempts: int | None
    is_async: bool
    shares_transaction: bool
    """Whether the user declared that everything the handler does is in its transaction."""

    def faults_with(self, settings: Settings) -> list[str]:
        """Return the reasons why the handler cannot run with these settings."""
        if self.shares_transaction and self.timeout_seconds is None:
            timeout = ("handler_timeout_seconds", settings.handler_timeout_seconds)
            return [f"handler {self.name!r}: {fault}" for fault in _timeout_faults(*timeout)]
        return []

    def with_defaults(self, settings: Settings) -> Handler:
        """Return the handler with the settings' values for the options that it leaves open."""
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
    transaction: TransactionMode = "own",
    available: Sequence[Argument] = ARGUMENTS,
) -> Handler:
    """Check and build a handler. Raise ConfigurationError with every fault."""
    name = name or function.__name__
    is_async = inspect.iscoroutinefunction(function)
    arguments, unknown = resolve_arguments(function, available)
    faults = [*_function_faults(function), *_pattern_faults(patterns := tuple(patterns))]
    names = ", ".join(argument.name for argument in available)
    faults += [f"unknown parameter {parameter!r}; use {names}" for parameter in unknown]
    faults += _transaction_faults(transaction, arguments.values(), timeout_seconds, available)
    if fault := invalid_text_reason(name):
        faults.append(f"the name {fault}")
    if timeout_seconds is not None and not timeout_seconds > 0:
        faults.append(f"timeout_seconds is {timeout_seconds}; use more than 0")
    if max_attempts is not None and max_attempts < 1:
        faults.append(f"max_attempts is {max_attempts}; use 1 or more")
    if faults:
        raise ConfigurationError([f"handler {name!r}: {fault}" for fault in faults])
    return Handler(
        name=name,
        function=function,
        routes=tuple(Route(pattern, source) for pattern in patterns),
        arguments=tuple(
            (parameter, argument.builder(is_async=is_async))
            for parameter, argument in arguments.items()
        ),
        model=model if model is not None else _annotated_model(function),
        timeout_seconds=timeout_seconds,
        max_attempts=max_attempts,
        is_async=is_async,
        shares_transaction=transaction == "shared",
    )


def _transaction_faults(
    transaction: str,
    arguments: Iterable[Argument],
    timeout_seconds: float | None,
    available: Sequence[Argument],
) -> Iterable[str]:
    if transaction not in get_args(TransactionMode):
        yield f"transaction is {transaction!r}; use 'own' or 'shared'"
    if transaction != "shared":
        return
    if not any(argument.is_transactional for argument in arguments):
        names = " or ".join(argument.name for argument in available if argument.is_transactional)
        yield (
            f"transaction='shared' is for handlers that do everything in {names}; "
            "name one of them in the signature, or remove transaction='shared'"
        )
    if timeout_seconds is not None:
        yield from _timeout_faults("timeout_seconds", timeout_seconds)


def _timeout_faults(name: str, seconds: float) -> Iterable[str]:
    """Yield a fault for a timeout below the one that a batch enforces for all its handlers."""
    limit = SHARED_TIMEOUT_SECONDS
    if seconds < limit:
        yield (
            f"{name} is {seconds:g}, less than the {limit:g} s that transaction='shared' allows "
            f"each handler; set {name} to {limit:g} or more, or remove transaction='shared'"
        )


def _function_faults(function: HandlerFunction) -> Iterable[str]:
    inner = inspect.unwrap(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        yield "the function is a generator: a call would not run its body"
    if inspect.iscoroutinefunction(inner) and not inspect.iscoroutinefunction(function):
        yield "an async function is wrapped in a sync one, which does not await its result"


def _pattern_faults(patterns: tuple[str, ...]) -> Iterable[str]:
    if not patterns:
        yield "no event type; write '*' for all types"
    for pattern in patterns:
        if not _PATTERN.fullmatch(str(pattern)):
            yield f"{pattern!r} is not a pattern; write invoice.paid, invoice.* or *"
        elif fault := invalid_text_reason(pattern):
            yield f"the pattern {pattern[:40]!r} {fault}"


def _annotated_model(function: HandlerFunction) -> Any:
    """Return the model in ``event: Event[Model]``, or None."""
    try:
        hint = get_type_hints(function).get("event")
    except (NameError, TypeError) as error:
        if "event" not in getattr(function, "__annotations__", {}):
            return None
        msg = (
            f"handler {function.__name__!r}: the annotations cannot be read ({error}); pass model="
        )
        raise ConfigurationError(msg) from error
    if get_origin(hint) is not Event:
        return None
    (model,) = get_args(hint)
    return None if model is Any else model
