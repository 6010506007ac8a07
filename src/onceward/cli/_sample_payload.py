"""A payload that fits a model, for the first request that a user sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onceward.work.decoders.decoder import Decoder

_Schema = Mapping[str, Any]

_VALUES: Final = {"integer": 123, "number": 123, "boolean": True, "array": [], "null": None}
_TIMES: Final = {"date-time": "2026-01-01T00:00:00Z", "date": "2026-01-01", "time": "00:00:00Z"}


def sample_payload(decoder: Decoder) -> Any:
    """Return a payload with the required fields of a model, as far as their types are simple."""
    try:
        schema = decoder.json_schema()
        return _sample("payload", schema, schema.get("$defs", {}), frozenset())
    except Exception:  # noqa: BLE001 - some types have no schema, some schemas are the user's own
        return {}


def _sample(
    name: str, schema: _Schema, definitions: Mapping[str, _Schema], outer: frozenset[str]
) -> Any:
    """Return a value that fits a schema. `outer` are the references that lead to the schema."""
    if reference := schema.get("$ref"):
        definition = definitions[reference.rpartition("/")[2]]
        return _sample(name, definition, definitions, outer | {reference})
    if choices := schema.get("anyOf", schema.get("oneOf", schema.get("allOf"))):
        finite = (choice for choice in choices if choice.get("$ref") not in outer)
        return _sample(name, next(finite, {}), definitions, outer)
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return values[0]
    if schema.get("type") == "string":
        return _TIMES.get(schema.get("format", ""), f"{name.removesuffix('_id')}_123")
    if schema.get("type") in _VALUES:
        return _VALUES[schema["type"]]
    fields = schema.get("properties", {})
    return {
        field: _sample(field, fields[field], definitions, outer)
        for field in schema.get("required", ())
    }
