"""Decodes the body of an event. Error messages name the field and contain no value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from onceward.errors import MalformedPayload

FORM: Final = "application/x-www-form-urlencoded"

_MISSING: Final = re.compile(r"missing required field `(?P<field>[^`]+)`")
_PATH: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")  # surrogateescape decodes invalid bytes to these
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONTROL: Final = re.compile("[\x00-\x1f]")
_VALUE: Final = re.compile(r"'.*'|\".*\"|-?\d[\d.]*", re.DOTALL)
_MAX_DIGITS: Final = 4300  # the limit of int()


class _Envelope(msgspec.Struct):
    payload: msgspec.Raw


class _InvalidValue:
    """Replaces a value that a strict decoder rejects."""

    def __init__(self, fault: str) -> None:
        self.fault = fault


def _parse_int(digits: str) -> object:
    return int(digits) if len(digits) <= _MAX_DIGITS else _InvalidValue("the number is too long")


_LENIENT: Final = json.JSONDecoder(
    strict=False,
    parse_int=_parse_int,
    parse_constant=lambda name: _InvalidValue(f"{name} is not JSON"),
)


def decode(
    body: bytes, *, model: Any = None, enveloped: bool = False, content_type: str = ""
) -> Any:
    """Decode a body, and validate it against `model` if there is one. Raise MalformedPayload.

    An `enveloped` body comes from ``POST /events/ingest``: only its member ``payload`` is decoded.
    A form is decoded to a dict of its fields, as strings.
    """
    if content_type.startswith(FORM) and not body.lstrip().startswith((b"{", b"[")):
        return _decode_form(body, model)
    content: bytes | msgspec.Raw = body
    try:
        content = msgspec.json.decode(body, type=_Envelope).payload if enveloped else body
        return msgspec.json.decode(content, type=Any if model is None else model)
    except msgspec.ValidationError as error:
        fault = (_syntax_fault(bytes(content)) if model is None else None) or _fault(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        fault = _syntax_fault(bytes(content)) or _fault(str(error))
    raise MalformedPayload(f"Malformed payload: {fault}")


def _decode_form(body: bytes, model: Any) -> Any:
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
        return fields if model is None else msgspec.convert(fields, model, strict=False)
    except msgspec.ValidationError as error:
        fault = _fault(str(error))
    except (ValueError, UnicodeDecodeError):
        fault = "not a form"
    raise MalformedPayload(f"Malformed payload: {fault}")


def _syntax_fault(content: bytes) -> str | None:
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
    for path, value in _leaves(document):
        if fault := _value_fault(value):
            return f"{path}: {fault}" if path else fault
    return None


def _leaves(document: object) -> Iterator[tuple[str, object]]:
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


def _members(path: str, value: dict[str, object] | list[object]) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"{path}.{name}" if path else name, item) for name, item in value.items())
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


def _fault(text: str) -> str:
    """Rewrite a message of msgspec to begin with the field and contain no value."""
    location = _PATH.search(text)
    path = location.group("path") if location else ""
    text = _PATH.sub("", text)
    if missing := _MISSING.search(text):
        return f"missing {f'{path}.' if path else ''}{missing.group('field')}"
    plain = text.replace("`", "").strip()
    if plain.startswith("JSON"):
        return plain
    plain = _VALUE.sub("…", plain[:1].lower() + plain[1:])
    return f"{path}: {plain}" if path else plain
