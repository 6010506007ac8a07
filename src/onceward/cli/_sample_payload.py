"""A payload that fits a model, for the first request that a user sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onceward.work.payloads.decoders.decoder import Decoder

_Schema = Mapping[str, Any]

_VALUES: Final = {"integer": 123, "number": 123, "boolean": True, "array": [], "null": None}
_TIMES: Final = {"date-time": "2026-01-01T00:00:00Z", "date": "2026-01-01", "time": "00:00:00Z"}

_MAX_VALUES: Final = 200


def sample_payload(decoder: Decoder) -> Any:
    """Return a payload with the required fields of a model, as far as their types are simple."""
    try:
        schema = decoder.json_schema()
        return _Sampler(schema.get("$defs", {})).sample("payload", schema)
    except Exception:  # noqa: BLE001 - some types have no schema, and this is a suggestion
        return {}


def with_members(payload: Any, members: Mapping[tuple[str, ...], Any]) -> Any:
    """Return a payload that has these values at their paths. Positions of lists are names here."""
    result = dict(payload) if isinstance(payload, Mapping) else {}
    for (name, *rest), value in members.items():
        inner = result.get(name)
        result[name] = with_members(inner, {tuple(rest): value}) if rest else value
    return result


class _Sampler:
    """Makes a value for a schema. A model that contains itself has no end."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._values_left = _MAX_VALUES

    def sample(self, name: str, schema: Mapping[str, Any]) -> Any:
        """Return a value. Raise ValueError if the payload would be too large."""
        self._values_left -= 1
        if not self._values_left:
            raise ValueError
        if reference := schema.get("$ref"):
            return self.sample(name, self._definitions[reference.rpartition("/")[2]])
        if choices := schema.get("anyOf", schema.get("oneOf", schema.get("allOf"))):
            is_optional = any(choice.get("type") == "null" for choice in choices)
            return None if is_optional else self.sample(name, choices[0])
        if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
            return values[0]
        if schema.get("type") == "string":
            return _TIMES.get(schema.get("format", ""), f"{name.removesuffix('_id')}_123")
        if schema.get("type") in _VALUES:
            return _VALUES[schema["type"]]
        fields = schema.get("properties", {})
        return {field: self.sample(field, fields[field]) for field in schema.get("required", ())}
