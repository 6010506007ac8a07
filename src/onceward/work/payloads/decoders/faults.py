"""The faults of a payload, in the same words for every decoder.

Messages quote no value of the payload. They may name its keys, at most 80 characters of each.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from onceward.errors import MalformedPayload
from onceward.runtime.error_text import first_line, type_name
from onceward.sources.json_text import LONG_NUMBER, MAX_NUMBER_CHARACTERS, TOO_DEEP, is_too_deep

NOT_ALLOWED: Final = "not an allowed value"

_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")  # surrogateescape decodes invalid bytes to these
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONTROL: Final = re.compile("[\x00-\x1f]")
_MARKED_CONTROL: Final = re.compile("[\udc00-\udc1f]")
_VALUE: Final = re.compile(r"'.*'|\".*\"|-?\d[\d.]*", re.DOTALL)
_MAX_NAME_CHARACTERS: Final = 80
_MAX_PATH_CHARACTERS: Final = 200
_MAX_SEARCHED_BYTES: Final = 1024 * 1024

_JSON_TYPES: Final = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}


def malformed(fault: str) -> MalformedPayload:
    """Return the error for a payload with this fault."""
    return MalformedPayload(f"Malformed payload: {fault}")


def at(path: str, fault: str) -> str:
    """Return a fault with the field that has it."""
    return f"{_bounded(path)}: {fault}" if path else fault


def named(fault: str, path: str) -> str:
    """Return a fault that is about the existence of a field."""
    return f"{fault} {_bounded(path)}".rstrip()


def _bounded(path: str) -> str:
    """Return both ends of a path: a field may be deeply nested."""
    if len(path) <= _MAX_PATH_CHARACTERS:
        return path
    half = _MAX_PATH_CHARACTERS // 2
    return f"{path[:half]}…{path[-half:]}"


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


def raised_fault(path: str, error: BaseException) -> str:
    """Return the fault for an error that the model's own code raised, with the first line of it.

    The text is the user's, like that of an error which a handler raises: it may quote the payload.
    """
    return at(path, first_line(error) or f"refused by the model ({type_name(error)})")


class _InvalidValue:
    """Replaces a value that a strict decoder rejects."""

    def __init__(self, fault: str) -> None:
        self.fault = fault


def _check_whole(text: str) -> object:
    return _InvalidValue(LONG_NUMBER) if len(text) > MAX_NUMBER_CHARACTERS else None


def _check_float(text: str) -> object:
    if math.isfinite(float(text)):
        return _check_whole(text)
    return _InvalidValue("number out of range")


def _decoder(*, strict: bool) -> json.JSONDecoder:
    """Return a decoder that accepts every number and, unless it is strict, control characters."""
    return json.JSONDecoder(
        strict=strict,
        parse_int=_check_whole,
        parse_float=_check_float,
        parse_constant=lambda name: _InvalidValue(f"{name} is not JSON"),
    )


_STRICT: Final = _decoder(strict=True)
_LENIENT: Final = _decoder(strict=False)


def syntax_fault(content: bytes) -> str | None:
    """Return the field that a strict JSON decoder rejects and why, or None.

    The search is slow: the fault of a large body is left to the decoder, which names the byte.
    """
    if len(content) > _MAX_SEARCHED_BYTES:
        return None
    text = content.decode(errors="surrogateescape")
    if not text.strip():
        return "empty"
    if text.startswith("\ufeff"):
        return "begins with a byte order mark"
    if is_too_deep(content):
        return TOO_DEEP
    try:
        document = _decode(text)
    except json.JSONDecodeError as error:
        return f"not JSON (at character {error.pos})"
    return _first_fault(document)


def _decode(text: str) -> object:
    """Decode a document, with a mark for its first control character: escaped ones are valid."""
    try:
        return _STRICT.decode(text)
    except json.JSONDecodeError as error:
        if not _CONTROL.match(text, error.pos):
            raise
        mark = chr(0xDC00 + ord(text[error.pos]))
        marked = f"{text[: error.pos]}{mark}{text[error.pos + 1 :]}"
    return _LENIENT.decode(marked)


def _first_fault(document: object) -> str | None:
    """Return the first scalar at fault and why, or None.

    A stack replaces recursion: a body may be deeply nested. Paths are built for faults only.
    """
    steps: list[str | int] = []
    stack = [iter([("", document)])]
    while stack:
        for step, value in stack[-1]:
            steps[len(stack) - 1 :] = [step]
            if isinstance(value, dict | list):
                stack.append(_members(value))
                break
            if fault := _value_fault(value):
                return at(_path(steps[1:]), fault)
        else:
            stack.pop()
    return None


def _members(value: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    return iter(value.items() if isinstance(value, dict) else enumerate(value))


def _path(steps: Iterable[str | int]) -> str:
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else member(path, shortened(step))
    return path


def _value_fault(value: object) -> str | None:
    if isinstance(value, _InvalidValue):
        return value.fault
    if not isinstance(value, str):
        return None
    if _NOT_UTF8.search(value):
        return "not UTF-8"
    if found := _MARKED_CONTROL.search(value):
        return "contains a NUL" if found[0] == "\udc00" else "contains a control character"
    return "contains a lone surrogate" if _LONE_SURROGATE.search(value) else None
