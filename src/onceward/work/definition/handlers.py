"""Handlers: a function, its event types and its options, checked when they are defined."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace, UnionType
from typing import (
    Any,
    Final,
    Literal,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from onceward.errors import ConfigurationError
from onceward.model.events import Event, invalid_text_reason
from onceward.model.jobs import QueueRules, Route
from onceward.model.retry import (
    RetryOption,
    RetryRules,
    default_faults,
    make_retry_rules,
    retry_faults,
)
from onceward.runtime.code_location import definition_line
from onceward.runtime.suggest import suggest_or_list
from onceward.settings import MAX_ATTEMPTS, Settings
from onceward.work.definition.arguments import ARGUMENTS, Argument, Build, resolve_arguments
from onceward.work.definition.filters import (
    Condition,
    FilterOptions,
    filter_faults,
    make_condition,
    make_filter,
)
from onceward.work.definition.functions import HandlerFunction, function_faults
from onceward.work.definition.giving_up import GivingUp, make_giving_up
from onceward.work.definition.queue_rules import (
    LimitOptions,
    QueueOptions,
    make_queue_rules,
    queue_faults,
)
from onceward.work.definition.versions import (
    VersionOptions,
    VersionRule,
    make_version_rule,
    version_faults,
)
from onceward.work.payloads.decoders.decoder import Decoder
from onceward.work.payloads.decoders.msgspec_decoder import UNCHECKED
from onceward.work.payloads.model_tree import type_name
from onceward.work.payloads.models import make_decoder
from onceward.work.running.batching import SHARED_TIMEOUT_SECONDS

_PATTERN: Final = re.compile(r"\*|[^*]+(\.\*)?")
_OPTIONS_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("mode", "inline"), 'mode belongs to the source: inbox.source("…", mode="inline")'
        ),
        "max_events": "a call gets one event; write @inbox.on_batch for a list of them",
        "retry_safe_for": "it belongs to an outside call: @inbox.effect(retry_safe_for=…)",
    }
)
"""The advice for options that belong to something other than the handler."""
TransactionMode = Literal["own", "shared"]
"""Whether each job of a handler has its own transaction or may share one with other jobs."""


class CommonOptions(LimitOptions, FilterOptions, total=False):
    """The options of every handler. `Inbox.on` documents them."""

    source: str | None
    name: str | None
    model: Any
    timeout_seconds: float | None
    max_attempts: int | None
    retry: RetryOption | None
    on_failed: HandlerFunction | None


class HandlerOptions(CommonOptions, QueueOptions, VersionOptions, total=False):
    """The options of a handler that gets one event in a call."""

    transaction: TransactionMode


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
    retry: RetryRules
    rules: QueueRules
    """The order and the limits of its jobs."""
    version_rule: VersionRule | None
    """Where the version of an event is, if the handler ignores stale events."""
    condition: Condition | None = None
    """The function that decides in the worker whether the handler wants an event."""
    giving_up: GivingUp | None = None
    """The function that runs when a job fails for good."""
    max_events: int | None = None
    """The number of events that one call may get; None if a call gets one event by itself."""
    forwards_to: str | None = None
    """The URL without its query, if the handler is a forward."""

    @property
    def filter(self) -> str:
        """The filter that all its routes have, as canonical JSON; an empty text without one."""
        return self.routes[0].filter

    @property
    def has_filter(self) -> bool:
        """Whether a filter, a mapping or a function, may reject events of its types."""
        return bool(self.filter) or self.condition is not None

    @property
    def requires_payload(self) -> bool:
        """Whether a payload that cannot be decoded fails the job before the handler runs.

        `staleness` reads the version of an event before that.
        """
        return self.model is not None or bool(self.filter) or self.rules.ordering_key is not None

    @property
    def label(self) -> str:
        """The handler's name and the line that defines it, for messages."""
        return make_label(self.name, self.function)

    def faults_with(self, settings: Settings) -> list[str]:
        """Return the reasons why the handler cannot run with these settings."""
        faults = [
            *default_faults(self.retry, settings.retry_base_seconds, settings.retry_max_seconds)
        ]
        if self.shares_transaction and self.timeout_seconds is None:
            timeout = ("handler_timeout_seconds", settings.handler_timeout_seconds)
            faults += _timeout_faults(*timeout)
        return [f"{self.label}: {fault}" for fault in faults]

    def with_defaults(self, settings: Settings) -> Handler:
        """Return the handler with the settings' values for the options that it leaves open."""
        return replace(
            self,
            timeout_seconds=self.timeout_seconds or settings.handler_timeout_seconds,
            max_attempts=self.max_attempts or settings.max_attempts,
        )


def make_handler(
    function: HandlerFunction,
    patterns: Sequence[str],
    available: Sequence[Argument] = ARGUMENTS,
    /,
    **options: Unpack[HandlerOptions],
) -> Handler:
    """Check and build a handler. Raise ConfigurationError with every fault."""
    name = options.get("name")
    name = _default_name(function) if name is None else name
    is_async = inspect.iscoroutinefunction(function)
    transaction = options.get("transaction", "own")
    timeout_seconds = options.get("timeout_seconds")
    arguments, argument_faults = resolve_arguments(function, available)
    faults = [
        *_name_faults(name),
        *function_faults(function),
        *_pattern_faults(patterns),
        *argument_faults,
        *(option_faults := list(_option_faults(options))),
        *retry_faults(options.get("retry")),
        *queue_faults(options, transaction=transaction),
        *version_faults(options, transaction=transaction),
        *filter_faults(options, transaction=transaction),
    ]
    giving_up, giving_up_faults = make_giving_up(options.get("on_failed"))
    faults += giving_up_faults
    if not option_faults:
        faults += _transaction_faults(transaction, arguments.values(), timeout_seconds, available)
    model = None
    decoder: Decoder = UNCHECKED
    try:
        model = _choose_model(function, options.get("model"), available[0].name)
        decoder = make_decoder(model)
    except ConfigurationError as error:
        faults += error.faults
    if faults:
        label = make_label(name, function)
        raise ConfigurationError([f"{label}: {fault}" for fault in faults])
    return Handler(
        name=name,
        function=function,
        routes=tuple(
            Route(pattern, options.get("source"), make_filter(options)) for pattern in patterns
        ),
        arguments=tuple(
            (parameter, argument.builder(is_async=is_async))
            for parameter, argument in arguments.items()
        ),
        model=model,
        decoder=decoder,
        timeout_seconds=timeout_seconds,
        max_attempts=options.get("max_attempts"),
        is_async=is_async,
        shares_transaction=transaction == "shared",
        retry=make_retry_rules(options.get("retry")),
        rules=make_queue_rules(options),
        version_rule=make_version_rule(options),
        giving_up=giving_up,
        condition=make_condition(options),
    )


def make_label(name: str | None, function: HandlerFunction) -> str:
    """Return the name of a handler and the line that defines it, for messages."""
    name = _default_name(function) if name is None else name
    line = definition_line(function)
    return f"handler {name!r}" if line is None else f"handler {name!r} ({line})"


def _default_name(function: HandlerFunction) -> str:
    """Return the name of a function, or an empty text if it has none of its own."""
    name = getattr(function, "__name__", "")
    return "" if name == (lambda: None).__name__ else name


def _name_faults(name: object) -> Iterable[str]:
    if not isinstance(name, str):
        yield f"name is {name!r}; use a text"
    elif not name:
        yield "there is no name; pass name=, which jobs store"
    elif fault := invalid_text_reason(name):
        yield f"the name {fault}"


def _option_faults(options: HandlerOptions) -> Iterable[str]:
    """Yield a fault for each unknown option, and for each value of the wrong type or range."""
    yield from option_name_faults(options, HandlerOptions.__optional_keys__)
    for name, value in options.items():
        if value is not None and name in _REQUIREMENTS:
            is_valid, requirement = _REQUIREMENTS[name]
            if not is_valid(value):
                yield f"{name} is {value!r}; use {requirement}"


def option_name_faults(
    options: Mapping[str, object],
    names: Collection[str],
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Iterable[str]:
    """Yield a fault for each option that is not among the `names`.

    `refused` has the faults of options that only other kinds of handlers have.
    """
    for name in options:
        if name in refused:
            yield refused[name]
        elif name in names:
            continue
        elif name in _OPTIONS_ELSEWHERE:
            yield f"unknown option {name!r}; {_OPTIONS_ELSEWHERE[name]}"
        else:
            advice = suggest_or_list(name, names, "the options are", used=options)
            yield f"unknown option {name!r}{advice}"


def _is_attempt_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ATTEMPTS


def _is_duration(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < math.inf


_REQUIREMENTS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = MappingProxyType(
    {
        "source": (lambda value: isinstance(value, str), "the name of a source"),
        "timeout_seconds": (_is_duration, "a number of seconds, more than 0"),
        "max_attempts": (_is_attempt_count, f"a whole number from 1 to {MAX_ATTEMPTS}"),
        "transaction": (get_args(TransactionMode).__contains__, "'own' or 'shared'"),
    }
)
"""Options whose values are checked, each with its check and with what to use. None is unset."""


def _transaction_faults(
    transaction: str,
    arguments: Iterable[Argument],
    timeout_seconds: float | None,
    available: Sequence[Argument],
) -> Iterable[str]:
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


def _pattern_faults(patterns: Sequence[object]) -> Iterable[str]:
    if not patterns:
        yield "no event type; write '*' for all types"
    for pattern in patterns:
        if isinstance(pattern, list | tuple | set | frozenset):
            listed = ", ".join(map(repr, pattern))
            kind = type(pattern).__name__
            yield f"event types are separate arguments, not a {kind}; write {listed}"
        elif not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            yield f"{pattern!r} is not a pattern; write invoice.paid, invoice.* or *"
        elif fault := invalid_text_reason(pattern):
            yield f"the pattern {pattern[:40]!r} {fault}"


def _choose_model(function: HandlerFunction, given: Any, name: str) -> Any:
    """Return the model of a handler's payloads, or None: `model=`, else the annotation's.

    `name` is the parameter that gets the event, or the list of events.
    """
    try:
        hint = _event_hint(function, name)
    except NameError as error:
        if given is not None:
            return given
        text = f"the annotation of {name} cannot be read ({error}); pass model="
        raise ConfigurationError(text) from error
    annotated = _annotated_model(hint) if name == "event" else _model_of_list(hint)
    if given is None or annotated is None:
        return annotated if given is None else given
    if given != annotated and annotated not in getattr(given, "__mro__", ()):
        names = f"model={type_name(given)} contradicts {name}: Event[{type_name(annotated)}]"
        raise ConfigurationError(f"{names}; remove one of the two")
    return given


def _event_hint(function: HandlerFunction, name: str) -> Any:
    """Return the annotation of a parameter, or Any. Raise NameError if it cannot be resolved."""
    parameter = inspect.signature(function).parameters.get(name)
    if parameter is None or parameter.annotation is parameter.empty:
        return Any
    owner = SimpleNamespace(__annotations__={name: parameter.annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(owner, names)[name]
    except (NameError, ConfigurationError):
        raise
    except Exception as error:  # an annotation is user code
        raise NameError(str(error)) from error


def _model_of_list(hint: Any) -> Any:
    """Return the model in ``list[Event[Model]]``, or None. Raise ConfigurationError."""
    if hint is Any or hint is list:
        return None
    origin, arguments = get_origin(hint), get_args(hint)
    is_list = isinstance(origin, type) and issubclass(list, origin) and len(arguments) == 1
    if is_list and (get_origin(arguments[0]) or arguments[0]) in (Event, Any):
        return _annotated_model(arguments[0])
    raise ConfigurationError(
        f"events is annotated as {type_name(hint)}; write events: list[Event[Model]]"
    )


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
