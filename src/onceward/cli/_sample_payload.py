"""A payload that fits a model, for the first request that a user sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onceward.work.decoders.decoder import Decoder

_VALUES: Final = {"integer": 123, "number": 123, "boolean": True, "array": [], "null": None}
_TIMES: Final = {"date-time": "2026-01-01T00:00:00Z", "date": "2026-01-01", "time": "00:00:00Z"}


def sample_payload(decoder: Decoder) -> Any:
    """Return a payload with the required fields of a model, as far as their types are simple."""
    try:
        schema = decoder.json_schema()
    except Exception:  # noqa: BLE001 - some types have no schema, and this is a suggestion
        return {}
    return _sample("payload", schema, schema.get("$defs", {}))


def _sample(name: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    if reference := schema.get("$ref"):
        return _sample(name, definitions[reference.rpartition("/")[2]], definitions)
    if choices := schema.get("anyOf", schema.get("oneOf", schema.get("allOf"))):
        return _sample(name, choices[0], definitions)
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return values[0]
    if schema.get("type") == "string":
        return _TIMES.get(schema.get("format", ""), f"{name.removesuffix('_id')}_123")
    if schema.get("type") in _VALUES:
        return _VALUES[schema["type"]]
    fields = schema.get("properties", {})
    return {
        field: _sample(field, fields[field], definitions) for field in schema.get("required", ())
    }
