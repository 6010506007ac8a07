"""Reads the schema that pydantic makes of a model: nested dicts, documented as its core schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_OPAQUE: Final = {"is-instance", "is-subclass", "callable"}
_USER_FUNCTIONS: Final = {"function-before", "function-wrap", "function-plain"}
_SEQUENCES: Final = {"list", "tuple", "set", "frozenset"}
_NOT_FOR_JSON: Final = {"python_schema", "metadata", "serialization"}


def opaque_parts(schema: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield each type that pydantic cannot make from JSON, with the field that has it."""
    if isinstance(schema, Mapping) and schema.get("type") in _OPAQUE:
        cls = schema.get("cls")
        yield place, cls.__name__ if isinstance(cls, type) else "a callable"
    for inner, part in _children(schema, place):
        yield from opaque_parts(part, inner)


def _children(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, list | tuple):
        yield from ((place, part) for part in schema)
    if not isinstance(schema, Mapping) or schema.get("type") in _USER_FUNCTIONS:
        return  # a function gets the JSON value, and may return an instance
    if schema.get("type") == "chain":
        yield place, schema["steps"][0]  # the next steps get the value that this one makes
        return
    if isinstance(cls := schema.get("cls"), type):
        place = cls.__name__
    if schema.get("type") == "dataclass-field":
        place = f"{place}.{schema['name']}"
    for name, part in schema.items():
        if name == "fields" and isinstance(part, Mapping):
            yield from ((f"{place}.{field}", inner) for field, inner in part.items())
        elif name not in _NOT_FOR_JSON:
            yield place, part


def field_names(schema: object) -> frozenset[str]:
    """Return the names and aliases of all fields in a schema of pydantic."""
    return frozenset(_names(schema))


def _names(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        fields = node.get("fields")
        if isinstance(fields, Mapping):
            yield from fields
        if isinstance(name := node.get("name"), str):
            yield name
        yield from _strings(node.get("validation_alias"))
        for part in node.values():
            yield from _names(part)
    elif isinstance(node, list | tuple):
        for part in node:
            yield from _names(part)


def _strings(alias: object) -> Iterator[str]:
    """Yield the names in an alias: a name, a path, or several paths."""
    if isinstance(alias, str):
        yield alias
    elif isinstance(alias, list | tuple):
        for part in alias:
            yield from _strings(part)


def for_quick_check(schema: Any) -> Any:
    """Return a schema that stops at the first wrong item and treats Python values like JSON."""
    if isinstance(schema, list):
        return [for_quick_check(part) for part in schema]
    if type(schema) is tuple:
        return tuple(for_quick_check(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    kept = {"metadata", "serialization", "default"}
    parts = {name: part if name in kept else for_quick_check(part) for name, part in schema.items()}
    if parts.get("type") in _SEQUENCES:
        parts["fail_fast"] = True
    if parts.get("type") == "json-or-python":
        parts["python_schema"] = parts["json_schema"]
    return parts
