"""Decodes with msgspec: Structs, dataclasses, attrs classes, TypedDicts and builtin types."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

import msgspec

from onceward.sources.json_text import decode_json
from onceward.work.payloads.decoders.decoder import Content
from onceward.work.payloads.decoders.faults import (
    NOT_ALLOWED,
    at,
    malformed,
    member,
    named,
    raised_fault,
    shortened,
    syntax_fault,
    without_values,
)

_PATH: Final = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$")
_NAMED: Final = re.compile(r"Object (?P<fault>\w+) \w+ field `(?P<name>.+)`", re.DOTALL)
_NAMED_FAULTS: Final = {"missing": "missing", "contains": "unexpected"}
_NOT_ALLOWED: Final = re.compile(r"Invalid (?:enum )?value\b")
_TEXT_FORMAT: Final = re.compile(
    r"Invalid (?:RFC3339 encoded |ISO8601 )?(?P<name>datetime|date|time|duration|UUID|decimal)"
    r"(?: string)?"
)
# What follows the type is the model's own text: another type's name, or a constraint.
_EXPECTED: Final = re.compile(
    r"Expected `[^`]+`(?:, got `\w+`| [<>]=? \S+| of length(?: [<>]=)? \d+"
    r"| of at (?:least|most) length \d+, got \d+"
    r"| that's a multiple of \S+| matching regex .+)?"
)


class MsgspecDecoder:
    """Decodes into a type that msgspec supports.

    The JSON is decoded without the model before that, because msgspec skips what a model does not
    read: a filter and a key must be able to read every body that a handler gets.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._decode = msgspec.json.Decoder(model).decode

    def decode_json(self, content: Content) -> Any:
        """Decode a JSON document."""
        UNCHECKED.decode_json(content)
        try:
            return self._decode(content)
        except (msgspec.ValidationError, AssertionError) as error:
            fault = _fault(error)
        raise malformed(fault)

    def decode_form(self, fields: dict[str, str]) -> Any:
        """Decode the fields of a form."""
        try:
            return msgspec.convert(fields, self._model, strict=False)
        except (msgspec.ValidationError, AssertionError) as error:
            fault = _fault(error)
        raise malformed(fault)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the model."""
        return msgspec.json.schema(self._model)


class UncheckedDecoder:
    """Decodes any JSON document and any form, for handlers without a model."""

    def decode_json(self, content: Content) -> Any:
        """Decode a JSON document."""
        text = bytes(content)
        try:
            return decode_json(text)
        except ValueError as error:
            fault = syntax_fault(text) or _fault(error)
        raise malformed(fault)

    def decode_form(self, fields: dict[str, str]) -> dict[str, str]:
        """Return the fields."""
        return fields

    def json_schema(self) -> dict[str, Any]:
        """Return the schema of any value."""
        return {}


UNCHECKED: Final = UncheckedDecoder()


class TerseDecoder(UncheckedDecoder):
    """Decodes without a search for the fault of a malformed document."""

    def decode_json(self, content: Content) -> Any:
        """Decode a JSON document."""
        try:
            return decode_json(bytes(content))
        except ValueError:
            raise malformed("not decoded") from None


class ExactDecoder(TerseDecoder):
    """Decodes with a Decimal for each number that is not whole."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(float_hook=Decimal).decode

    def decode_json(self, content: Content) -> Any:
        """Decode a JSON document."""
        super().decode_json(content)  # a Decimal has no range
        return self._decode(content)


def _fault(error: Exception) -> str:
    """Rewrite a message of msgspec to begin with the field and contain no value."""
    if (raised := _raised_by_the_model(error)) is not None:
        _, path = _location(str(error).removeprefix(str(raised)))  # the text is user code's
        return raised_fault(path, raised)
    text, path = _location(str(error))
    if (found := _NAMED.fullmatch(text)) and (fault := _NAMED_FAULTS.get(found["fault"])):
        return named(fault, member(path, shortened(found["name"])))
    return at(path, _plain(text))


def _location(text: str) -> tuple[str, str]:
    """Split the location from the end of a message. A key is at fault at ``[...]``."""
    if not (found := _PATH.search(text)):
        return text, ""
    return text[: found.start()], found["path"] + ("[...]" if found["key"] else "")


def _plain(text: str) -> str:
    if _NOT_ALLOWED.match(text):
        return NOT_ALLOWED
    if found := _TEXT_FORMAT.fullmatch(text):
        return f"invalid {found['name'].lower()}"
    plain = text.replace("`", "").strip()
    if plain.startswith("JSON"):
        return plain
    plain = plain[:1].lower() + plain[1:]
    return plain if _EXPECTED.fullmatch(text) else without_values(plain)


def _raised_by_the_model(error: Exception) -> BaseException | None:
    """Return the error of a `__post_init__` or a validator; msgspec makes it the cause."""
    return error if isinstance(error, AssertionError) else error.__cause__
