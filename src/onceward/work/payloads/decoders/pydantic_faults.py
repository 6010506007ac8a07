"""Rewrites pydantic's errors to the words of the other decoders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from onceward.work.payloads.decoders.faults import (
    NOT_ALLOWED,
    at,
    expected,
    json_type,
    member,
    named,
    raised_fault,
    shortened,
)

_Entry = Mapping[str, Any]
"""One error of pydantic, with its type, location, message, input and context."""
_Steps = list[str | int]

_MAX_ENTRIES: Final = 100  # a large body may have one error for every few bytes
_MAX_LISTED: Final = 10_000  # pydantic lists all its errors or none
_MAX_READINGS: Final = 64
_NAMED: Final = {
    "missing": "missing",
    "union_tag_not_found": "missing",
    "extra_forbidden": "unexpected",
}
_NOT_ALLOWED: Final = {"literal_error", "enum", "union_tag_invalid"}
_TAGS: Final = {"union_tag_not_found", "union_tag_invalid"}
_TAG_FIELD: Final = re.compile(r"'(\w+)'")
_TEXT_FORMAT: Final = re.compile(
    r"(datetime|date|time_delta|time|decimal|uuid|url)_(?:from_date_|from_datetime_)?parsing"
    r"|ip_\w+"
)
_FORMATS: Final = {"time_delta": "duration", None: "IP address"}

_EXPECTED: Final = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "int"),
    **dict.fromkeys(("float_type", "float_parsing"), "float"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "bool"),
    **dict.fromkeys(("string_type", "string_sub_type", "json_type"), "str"),
    **dict.fromkeys(
        ("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), "array"
    ),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"),
        "object",
    ),
    "bytes_type": "bytes",
    "none_required": "null",
    "datetime_type": "datetime",
    "date_type": "date",
    "time_type": "time",
    "time_delta_type": "duration",
    "decimal_type": "decimal",
    "uuid_type": "uuid",
    "url_type": "url",
}
# The placeholders are the model's constraints and the type of the value.
_CONSTRAINTS: Final = {
    "greater_than": "expected {got} > {gt}",
    "greater_than_equal": "expected {got} >= {ge}",
    "less_than": "expected {got} < {lt}",
    "less_than_equal": "expected {got} <= {le}",
    "multiple_of": "expected {got} that's a multiple of {multiple_of}",
    "string_too_short": "expected str of length >= {min_length}",
    "string_too_long": "expected str of length <= {max_length}",
    "too_short": "expected {got} of length >= {min_length}",
    "too_long": "expected {got} of length <= {max_length}",
    "decimal_max_digits": "expected decimal of at most {max_digits} digits",
    "decimal_max_places": "expected decimal of at most {decimal_places} decimal places",
    "string_pattern_mismatch": "expected str matching regex '{pattern}'",
}


def describe_errors(error: Any, document: object, names: frozenset[str]) -> str:
    """Return the first field at fault and what is wrong with it, and how many more there are.

    pydantic reports each member of a union by itself: errors at one place count as one.
    """
    if (count := error.error_count()) > _MAX_LISTED:
        return f"{count} fields do not fit the model"
    entries = error.errors(include_url=False)
    by_path: dict[str, list[_Entry]] = {}
    for entry in entries[:_MAX_ENTRIES]:
        if _is_nesting(entry, document):
            return "nested too deeply"
        by_path.setdefault(_path(entry, document, names), []).append(entry)
    fault = _fault(*next(iter(by_path.items())))
    others = len(by_path) - 1 + len(entries[_MAX_ENTRIES:])
    return f"{fault}, and {others} more" if others else fault


def _is_nesting(entry: _Entry, document: object) -> bool:
    """Return whether a document, whose syntax is known to be valid, exceeds pydantic's depth."""
    if entry["type"] == "recursion_loop":
        return True
    # A field of the type Json has a document of its own, in a string.
    return entry["type"] == "json_invalid" and not entry["loc"] and not isinstance(document, str)


def _fault(path: str, entries: Sequence[_Entry]) -> str:
    types = [_EXPECTED.get(entry["type"], "") for entry in entries]
    if all(types):
        return at(path, expected(dict.fromkeys(types), entries[0]["input"]))
    entry = entries[types.index("")]  # the member of a union that is nearest: the type fits
    kind, value, context = entry["type"], entry["input"], entry.get("ctx", {})
    if kind in _NAMED:
        return named(_NAMED[kind], path)
    if isinstance(raised := context.get("error"), Exception):
        return raised_fault(path, raised)
    return at(path, _own_words(kind, value, context) or f"invalid ({shortened(kind)})")


def _own_words(kind: str, value: object, context: Mapping[str, Any]) -> str:
    """Return a fault by its type alone: the messages of pydantic quote values."""
    if kind in _NOT_ALLOWED:
        return NOT_ALLOWED
    if kind == "json_invalid":
        return "not JSON"
    if found := _TEXT_FORMAT.fullmatch(kind):
        return f"invalid {_FORMATS.get(found[1], found[1])}"
    try:
        return _CONSTRAINTS.get(kind, "").format_map({**context, "got": json_type(value)})
    except KeyError:  # an error of the user's own that has the type of a constraint
        return ""


def _path(entry: _Entry, document: object, names: frozenset[str]) -> str:
    """Return the path of a field, as msgspec writes it.

    pydantic's location also contains the names of union members. It is read along the document, and
    the reading that leads to the value at fault is right. A name that no model declares is a key of
    the payload, and stays hidden.
    """
    kind, location = entry["type"], list(entry["loc"])
    last = [location.pop()] if kind == "missing" else []
    if kind in _TAGS and (found := _TAG_FIELD.fullmatch(entry["ctx"]["discriminator"])):
        last = [found[1]]
    readings = list(islice(_readings(document, location), _MAX_READINGS))
    steps = next(
        (steps for steps, value in readings if _is_same(value, entry["input"])), readings[0][0]
    )
    if kind == "extra_forbidden" and steps:
        *steps, extra = steps
        return member(_join(steps, names), shortened(str(extra)))
    return _join([*steps, *last], names)


def _is_same(value: object, found: object) -> bool:
    return value is found or value == found


def _readings(value: Any, location: _Steps) -> Iterator[tuple[_Steps, object]]:
    """Yield each way to follow a location from a value, with the value that it leads to."""
    if not location:
        yield [], value
        return
    step, rest = location[0], location[1:]
    if _has(value, step):
        for steps, found in _readings(value[step], rest):
            yield [step, *steps], found
    yield from _readings(value, rest)


def _has(value: object, step: str | int) -> bool:
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _join(steps: _Steps, names: frozenset[str]) -> str:
    path = ""
    for step in steps:
        if isinstance(step, int):
            path = f"{path}[{step}]"
        else:
            path = member(path, step) if step in names else f"{path}[...]"
    return path
