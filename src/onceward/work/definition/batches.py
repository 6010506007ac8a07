"""Handlers that get many events in one call: `Inbox.on_batch`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Unpack, cast

from onceward.errors import ConfigurationError
from onceward.work.definition.arguments import BATCH_ARGUMENTS
from onceward.work.definition.functions import HandlerFunction
from onceward.work.definition.handlers import (
    CommonOptions,
    Handler,
    HandlerOptions,
    make_handler,
    make_label,
    option_name_faults,
)

MAX_EVENTS: Final = 1_000
DEFAULT_EVENTS: Final = 200

_IN_ORDER: Final = "a key has one event in flight, so a call could only have one event of each key"
_STALE: Final = "a stale event must roll back alone, and a batch would roll back the others"
_REFUSED_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: f"{name} is not for on_batch: {reason}; remove it, or write @inbox.on"
        for name, reason in (
            ("ordering_key", _IN_ORDER),
            ("on_head_failed", _IN_ORDER),
            ("version", _STALE),
            ("version_key", _STALE),
            ("transaction", "a batch always has one transaction of its own"),
        )
    }
)


class BatchOptions(CommonOptions, total=False):
    """The options of a handler that gets many events in a call. `Inbox.on_batch` documents them."""

    max_events: int


def make_batch_handler(
    function: HandlerFunction, patterns: Sequence[str], /, **options: Unpack[BatchOptions]
) -> Handler:
    """Check and build a handler of batches. Raise ConfigurationError with every fault."""
    max_events = options.get("max_events", DEFAULT_EVENTS)
    label = make_label(options.get("name"), function)
    faults = [
        f"{label}: {fault}"
        for fault in (
            *option_name_faults(options, BatchOptions.__optional_keys__, _REFUSED_OPTIONS),
            *_count_faults(max_events),
            *_parameter_faults(function),
        )
    ]
    known = {name: options[name] for name in CommonOptions.__optional_keys__ if name in options}  # type: ignore[literal-required] # each of them is a key
    try:
        handler = make_handler(function, patterns, BATCH_ARGUMENTS, **cast("HandlerOptions", known))
    except ConfigurationError as error:
        raise ConfigurationError([*faults, *error.faults]) from None
    if faults:
        raise ConfigurationError(faults)
    return replace(handler, max_events=max_events)


def _count_faults(count: object) -> Iterator[str]:
    is_count = isinstance(count, int) and not isinstance(count, bool)
    if not is_count or not 1 <= cast("int", count) <= MAX_EVENTS:
        yield f"max_events is {count!r}; use a whole number from 1 to {MAX_EVENTS}"


def _parameter_faults(function: HandlerFunction) -> Iterator[str]:
    parameters = inspect.signature(function).parameters
    if "events" not in parameters and "event" not in parameters:
        yield "the handler needs events, the list of events; write def store(events, tx)"
    if "tx" not in parameters:
        yield (
            "the handler needs tx: what it does elsewhere would not be undone when the batch "
            "fails, and happen again; add tx, or write @inbox.on"
        )
