"""The faults of a payload, in the same words for every decoder and without its values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from onceward.errors import MalformedPayload

NOT_ALLOWED: Final = "not an allowed value"

_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")  # surrogateescape decodes invalid bytes to these
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONTROL: Final = re.compile("[\x00-\x1f]")
_VALUE: Final = re.compile(r"'.*'|\".*\"|-?\d[\d.]*", re.DOTALL)
_QUOTED_NAME: Final = re.compile(r"'(?P<name>\w+)' (?P<text>must .*)", re.DOTALL)
_MAX_DIGITS: Final = 4300  # the limit of int()
_MAX_TEXT_CHARACTERS: Final = 200
_MAX_NAME_CHARACTERS: Final = 80

_JSON_TYPES: Final = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}


def malformed(fault: str) -> MalformedPayload:
    """Return the error for a payload with this fault."""
    return MalformedPayload(f"Malformed payload: {fault}")


def at(path: str, fault: str) -> str:
    """Return a fault with the field that has it."""
    return f"{path}: {fault}" if path else fault


def shortened(name: str) -> str:
    """Return a name of the payload, which may be very long, at a readable length."""
    return name if len(name) <= _MAX_NAME_CHARACTERS else f"{name[:_MAX_NAME_CHARACTERS]}…"


def expected(types: Iterable[str], value: object) -> str:
    """Return the fault for a value of the wrong type."""
    return f"expected {' | '.join(types)}, got {json_type(value)}"


def member(path: str, name: str) -> str:
    """Return the path of a member of an object."""
    return f"{path}.{name}" if path else name


def json_type(value: object) -> str:
    """Return the name of a decoded value's type, as msgspec writes it."""
    if name := _JSON_TYPES.get(type(value)):
        return name
    return "object" if isinstance(value, dict) else "array"


def without_values(text: str) -> str:
    """Mask all that may be a value: quoted text and numbers."""
    return _VALUE.sub("…", text)


def raised_fault(path: str, error: BaseException, document: object) -> str:
    """Return the fault for an error that the model's own code raised.

    The text is the user's and may quote the payload anywhere: every value of the payload is masked.
    A text that begins with the quoted name of a field, as those of attrs do, becomes a path.
    """
    text = str(error.args[0]) if error.args else ""
    if (named := _QUOTED_NAME.fullmatch(text)) and named["name"] not in _texts(document):
        path, text = member(path, named["name"]), named["text"]
    first_line = (text.splitlines() or [""])[0]
    for value in sorted(_texts(document), key=len, reverse=True):
        if value in first_line:
            first_line = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", first_line)
    masked = without_values(first_line)[:_MAX_TEXT_CHARACTERS].strip()
    return at(path, masked or f"refused by the model ({type(error).__name__})")


def _texts(document: object) -> set[str]:
    """Return the strings among the values of a document."""
    values = {value for _, value in leaves(document) if isinstance(value, str)}
    return {text for value in values for text in (value, value.strip()) if text}


class _InvalidValue:
    """Replaces a value that a strict decoder rejects."""

    def __init__(self, fault: str) -> None:
        self.fault = fault


def _parse_int(digits: str) -> object:
    return int(digits) if len(digits) <= _MAX_DIGITS else _InvalidValue("the number is too long")


def _parse_float(text: str) -> object:
    number = float(text)
    return number if math.isfinite(number) else _InvalidValue("number out of range")


_LENIENT: Final = json.JSONDecoder(
    strict=False,
    parse_int=_parse_int,
    parse_float=_parse_float,
    parse_constant=lambda name: _InvalidValue(f"{name} is not JSON"),
)


def lenient_document(content: bytes) -> object:
    """Return a JSON document as far as it can be decoded, else None."""
    try:
        return _LENIENT.decode(content.decode(errors="surrogateescape"))
    except (json.JSONDecodeError, RecursionError):
        return None


def syntax_fault(content: bytes) -> str | None:
    """Return the field that a strict JSON decoder rejects and why, or None."""
    text = content.decode(errors="surrogateescape")
    if not text.strip():
        return "empty"
    if text.startswith("\ufeff"):
        return "begins with a byte order mark"
    try:
        document = _LENIENT.decode(text)
    except json.JSONDecodeError as error:
        return f"not JSON (at character {error.pos})"
    except RecursionError:
        return "nested too deeply"
    for path, value in leaves(document):
        if fault := _value_fault(value):
            return at(path, fault)
    return None


def leaves(document: object) -> Iterator[tuple[str, object]]:
    """Yield each scalar with its path. A stack replaces recursion: a body may be deeply nested."""
    stack: list[Iterator[tuple[str, object]]] = [iter([("", document)])]
    while stack:
        path, value = next(stack[-1], ("", stack))
        if value is stack:  # the iterator is exhausted
            stack.pop()
        elif isinstance(value, dict | list):
            stack.append(_members(path, value))
        else:
            yield path, value


def _members(path: str, value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((member(path, name), item) for name, item in value.items())
    else:
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))


def _value_fault(value: object) -> str | None:
    if isinstance(value, _InvalidValue):
        return value.fault
    if not isinstance(value, str):
        return None
    if _NOT_UTF8.search(value):
        return "not UTF-8"
    if _LONE_SURROGATE.search(value):
        return "contains a lone surrogate"
    if "\0" in value:
        return "contains a NUL"
    return "contains a control character" if _CONTROL.search(value) else None
