"""Filters: what the payload of an event must have before a handler gets a job for it.

A mapping from paths to values is part of the handler's routes, and decides when the event is
recorded. A function runs in the worker, before the handler.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypedDict

from onceward.errors import StoreBlocked
from onceward.model.events import Event
from onceward.runtime.code_location import definition_line
from onceward.work.definition.functions import function_faults, is_function
from onceward.work.definition.payload_paths import find_value, path_faults
from onceward.work.payloads.payload import UNDECODABLE

Scalar = str | int | float | bool | None
"""A value that a filter compares."""

FilterMapping = Mapping[str, Scalar | Sequence[Scalar]]
"""The values that match at each path."""

FilterFunction = Callable[[Event[Any]], bool | Awaitable[bool]]
"""Returns whether a handler wants an event."""

FILTER_LIMIT_BYTES: Final = 2000
"""The length of a filter as JSON. It is part of a key of the routes, which PostgreSQL limits."""

_ADVICE: Final = (
    "use a mapping such as {'data.status': 'paid'}, or a function that gets the event and returns "
    "True or False"
)
_VALUES: Final = "use a text, a number, True, False or None, or a list of them"
_SHOWN_CHARACTERS: Final = 80
_MISSING: Final = object()
_KIND_NAMES: Final[Mapping[type | None, str]] = {
    str: "a text",
    float: "a number",
    bool: "a boolean",
}
_UNREADABLE: Final = (
    "the ledger has a route with a filter that this version of Onceward cannot read: a newer "
    "version registered it. Upgrade this process"
)


class FilterOptions(TypedDict, total=False):
    """The option of a handler that does not want every event. `Inbox.on` documents it."""

    when: FilterMapping | FilterFunction | None


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter function of a handler. The worker calls it before the handler."""

    function: FilterFunction
    is_async: bool

    @property
    def label(self) -> str:
        """The option and the line that defines the function, for messages."""
        line = definition_line(self.function)
        return f"when ({line})" if line else "when"


def filter_faults(options: FilterOptions, *, transaction: object) -> Iterator[str]:
    """Yield a fault for each part of the filter that cannot work."""
    when: object = options.get("when")
    if when is None:
        return
    if isinstance(when, Mapping):
        yield from _mapping_faults(when)
    elif not callable(when) or not is_function(when):
        yield f"when is {_shown(when)}; {_ADVICE}"
    else:
        yield from _function_faults(when)
        if transaction == "shared":
            yield (
                "when=function does not work with transaction='shared': each job must be able to "
                "end before the transaction that it would share; write the filter as a mapping, "
                "or remove transaction='shared'"
            )


def make_filter(options: FilterOptions) -> str:
    """Return the filter of the routes of a handler, as canonical JSON; '' without one.

    Mappings that match the same values are the same text.
    """
    when = options.get("when")
    return _canonical(when) if isinstance(when, Mapping) else ""


def make_condition(options: FilterOptions) -> Condition | None:
    """Return the filter function of a handler, or None."""
    when = options.get("when")
    if when is None or isinstance(when, Mapping):
        return None
    return Condition(when, is_async=inspect.iscoroutinefunction(when))


def passes(filter: str, document: Any) -> bool:
    """Return whether a payload passes the filter of a route: each path has one of its values.

    A payload that cannot be decoded passes: its job fails, with the reason. Raise StoreBlocked for
    a filter that cannot be read.
    """
    if document is UNDECODABLE:
        return True
    return all(
        _is_one_of(find_value(document, path, _MISSING), values) for path, values in _parse(filter)
    )


def missing_path(filter: str, document: Any) -> str | None:
    """Return the first path of a filter at which a payload has nothing, or None."""
    return next(
        (".".join(path) for path, _ in _parse(filter) if _lacks(document, path)),
        None,
    )


def other_kind(filter: str, document: Any) -> tuple[str, str, str] | None:
    """Return the first path whose value is of another kind than the filter's, with both kinds.

    A null is left out: it is often one of the values of a field that is a text otherwise.
    """
    for path, values in _parse(filter):
        kinds = [_kind(each) for each in values]
        found = _kind(find_value(document, path, _MISSING))
        if found in _KIND_NAMES and found not in kinds and kinds[0] in _KIND_NAMES:
            return ".".join(path), _KIND_NAMES[found], _KIND_NAMES[kinds[0]]
    return None


def filter_members(filter: str) -> dict[tuple[str, ...], Scalar]:
    """Return the paths of a filter, each with one of its values."""
    return {path: values[0] for path, values in _parse(filter)}


def filter_text(filter: str) -> str:
    """Return the filter of a route for people: ``data.status is 'paid' or 'sent'``."""
    return " and ".join(
        f"{'.'.join(path)} is {' or '.join(map(repr, values))}" for path, values in _parse(filter)
    )


@lru_cache(maxsize=1024)
def _parse(filter: str) -> tuple[tuple[tuple[str, ...], tuple[Scalar, ...]], ...]:
    """Return the paths of a filter, each with its values. Raise StoreBlocked."""
    try:
        members = json.loads(filter).items()
    except (ValueError, AttributeError) as error:
        raise StoreBlocked(_UNREADABLE) from error
    if not all(_is_readable(path, values) for path, values in members):
        raise StoreBlocked(_UNREADABLE)
    return tuple((tuple(path.split(".")), tuple(values)) for path, values in members)


def _is_readable(path: str, values: object) -> bool:
    """Return whether this version wrote a member, or could have: it must not guess the others."""
    if not isinstance(values, list) or not values or any(path_faults("when", path)):
        return False
    return all(_is_scalar(value) for value in values)


def _lacks(document: Any, path: Sequence[str]) -> bool:
    return find_value(document, path, _MISSING) is _MISSING


def _is_one_of(value: object, values: Iterable[Scalar]) -> bool:
    return any(_kind(value) is _kind(each) and value == each for each in values)


def _kind(value: object) -> type | None:
    """Return the class that stands for the JSON type of a scalar; None for anything else."""
    match value:
        case bool() | str() | None:
            return next(kind for kind in (bool, str, type(None)) if isinstance(value, kind))
        case int() | float():
            return float
        case _:
            return None


def _is_scalar(value: object) -> bool:
    """Return whether a filter can have a value: JSON has no infinity, and a filter has a limit."""
    match value:
        case float():
            return math.isfinite(value)
        case int():
            return value.bit_length() < FILTER_LIMIT_BYTES
        case _:
            return _kind(value) is not None


def _canonical(when: FilterMapping) -> str:
    members = {path: _distinct(_listed(values)) for path, values in when.items()}
    return json.dumps(members, sort_keys=True, separators=(",", ":"))


def _listed(values: object) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else [values]


def _distinct(values: Sequence[Scalar]) -> list[Scalar]:
    """Return values without repetitions, sorted by their JSON. 1 and 1.0 are the same number."""
    distinct: list[Scalar] = []
    for value in values:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if not _is_one_of(whole, distinct):
            distinct.append(whole)
    return sorted(distinct, key=json.dumps)


def _mapping_faults(when: Mapping[Any, Any]) -> Iterator[str]:
    if not when:
        yield f"when is empty: every event would match; {_ADVICE}, or remove it"
        return
    faults = [
        *(fault for path in when for fault in path_faults("a path of when", path, "data.status")),
        *(fault for path, values in when.items() for fault in _value_faults(path, values)),
    ]
    yield from faults
    if not faults and (length := len(_canonical(when))) > FILTER_LIMIT_BYTES:
        yield (
            f"when is {length} bytes long as JSON; the limit is {FILTER_LIMIT_BYTES}; use a "
            "function"
        )


def _value_faults(path: object, values: object) -> Iterator[str]:
    name = f"when[{path!r}]"
    if isinstance(values, list | tuple) and not values:
        yield f"{name} is an empty list, which nothing matches; {_VALUES}"
        return
    for value in _listed(values):
        if isinstance(value, Mapping):
            yield f"{name} is an object; write the path of its member: '{path}.member'"
        elif not _is_scalar(value):
            yield f"{name} is {_shown(value)}; {_VALUES}"


def _function_faults(function: Callable[..., object]) -> Iterator[str]:
    yield from (f"when: {fault}" for fault in function_faults(function))
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        yield "when must take one argument, the event; write lambda event: …"
    except ValueError:
        return  # a builtin without a signature


def _shown(value: object) -> str:
    """Return a value for a message, in short."""
    if isinstance(value, type):
        return "a class"
    if isinstance(value, int) and not _is_scalar(value):
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:_SHOWN_CHARACTERS]
