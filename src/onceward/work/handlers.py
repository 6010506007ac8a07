"""Handlers: a function, its event types and its options, checked when they are defined."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from onceward.errors import ConfigurationError
from onceward.model.events import Event, invalid_text_reason
from onceward.model.jobs import Route
from onceward.settings import Settings
from onceward.work.arguments import ARGUMENTS, Argument, Build, resolve_arguments
from onceward.work.batching import SHARED_TIMEOUT_SECONDS
from onceward.work.decoders.decoder import Decoder
from onceward.work.decoders.msgspec_decoder import UNCHECKED
from onceward.work.model_tree import type_name
from onceward.work.models import make_decoder

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
    decoder: Decoder
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
    decoder: Decoder = UNCHECKED
    try:
        model = _choose_model(function, model)
        decoder = make_decoder(model)
    except ConfigurationError as error:
        faults += error.faults
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
        model=model,
        decoder=decoder,
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


def _choose_model(function: HandlerFunction, given: Any) -> Any:
    """Return the model of a handler's payloads, or None: `model=`, else the annotation's."""
    try:
        hint = _event_hint(function)
    except NameError as error:
        if given is not None:
            return given
        text = f"the annotation of event cannot be read ({error}); pass model="
        raise ConfigurationError(text) from error
    annotated = _annotated_model(hint)
    if given is None or annotated is None:
        return annotated if given is None else given
    if given != annotated and annotated not in getattr(given, "__mro__", ()):
        names = f"model={type_name(given)} contradicts event: Event[{type_name(annotated)}]"
        raise ConfigurationError(f"{names}; remove one of the two")
    return given


def _event_hint(function: HandlerFunction) -> Any:
    """Return the annotation of `event`, or Any. Raise NameError if it cannot be resolved."""
    parameter = inspect.signature(function).parameters.get("event")
    if parameter is None or parameter.annotation is parameter.empty:
        return Any
    owner = SimpleNamespace(__annotations__={"event": parameter.annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(owner, names)["event"]
    except NameError:
        raise
    except Exception as error:  # an annotation is user code
        raise NameError(str(error)) from error


def _annotated_model(hint: Any) -> Any:
    """Return the model in ``Event[Model]``, or None. Raise ConfigurationError without an Event."""
    members = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    for member in members:
        if get_origin(member) is Event:
            (model,) = get_args(member)
            return None if model is Any or model is object else model
    origin = get_origin(hint) or hint
    if hint is not Any and isinstance(origin, type) and not _is_base_of_event(origin):
        name = type_name(hint)
        raise ConfigurationError(f"event is annotated as {name}; write event: Event[{name}]")
    return None


def _is_base_of_event(cls: type) -> bool:
    return getattr(cls, "_is_protocol", False) or issubclass(Event, cls)
