"""From the exact bytes of an event to what its handler wants, with errors that name the field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from onceward.errors import MalformedPayload

_MISSING: Final = re.compile(r"missing required field `(?P<field>[^`]+)`")
_PLACE: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of other bytes
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_CONTROL: Final = re.compile("[\x00-\x1f]")
_VALUE: Final = re.compile(r"'.*'|\".*\"|-?\d[\d.]*", re.DOTALL)


class _Refused:
    """What stands for a value that a strict reader refuses."""

    def __init__(self, fault: str) -> None:
        self.fault = fault


def _integer(digits: str) -> object:
    return int(digits) if len(digits) <= _MOST_DIGITS else _Refused("the number is too long")


_MOST_DIGITS: Final = 4300  # what int() takes
_TOLERANT: Final = json.JSONDecoder(
    strict=False,
    parse_int=_integer,
    parse_constant=lambda name: _Refused(f"{name} is not JSON"),
)


class _Envelope(msgspec.Struct):
    payload: msgspec.Raw


FORM: Final = "application/x-www-form-urlencoded"


def decode(
    body: bytes, *, model: Any = None, enveloped: bool = False, content_type: str = ""
) -> Any:
    """Decode a body, as `model` where one is given. Raises MalformedPayload.

    An `enveloped` body is one of ``POST /events/ingest``: its member ``payload`` is meant. A body
    that is a form becomes its fields, as texts.
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
        fault = "it is not a form"
    raise MalformedPayload(f"Malformed payload: {fault}")


def _syntax_fault(content: bytes) -> str | None:
    """What a strict reader refuses, and in which field; None where a tolerant one finds nothing."""
    text = content.decode(errors="surrogateescape")
    if not text.strip():
        return "it is empty"
    if text.startswith("\ufeff"):
        return "it begins with a byte order mark"
    try:
        document = _TOLERANT.decode(text)
    except json.JSONDecodeError as error:
        return f"it is not JSON (at character {error.pos})"
    except RecursionError:
        return "nested too deeply"
    for path, value in _leaves(document):
        if fault := _value_fault(value):
            return f"{path}: {fault}" if path else fault
    return None


def _leaves(document: object) -> Iterator[tuple[str, object]]:
    """Each value that holds no others, with its path. A body may be deep: nothing calls itself."""
    open_ones: list[Iterator[tuple[str, object]]] = [iter([("", document)])]
    while open_ones:
        path, value = next(open_ones[-1], ("", open_ones))
        if value is open_ones:
            open_ones.pop()
        elif isinstance(value, dict | list):
            open_ones.append(_members(path, value))
        else:
            yield path, value


def _members(path: str, value: dict[str, object] | list[object]) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"{path}.{name}" if path else name, at) for name, at in value.items())
    else:
        yield from ((f"{path}[{index}]", at) for index, at in enumerate(value))


def _value_fault(value: object) -> str | None:
    if isinstance(value, _Refused):
        return value.fault
    if not isinstance(value, str):
        return None
    if _NOT_UTF8.search(value):
        return "it is not UTF-8"
    if _HALF_PAIR.search(value):
        return "it contains half a surrogate pair"
    if "\0" in value:
        return "it contains a NUL"
    return "it contains a control character" if _CONTROL.search(value) else None


def _fault(text: str) -> str:
    """Turn a decoder's message into one that names the field and holds no value."""
    place = _PLACE.search(text)
    path = place.group("path") if place else ""
    text = _PLACE.sub("", text)
    if missing := _MISSING.search(text):
        return f"missing {f'{path}.' if path else ''}{missing.group('field')}"
    plain = text.replace("`", "").strip()
    if plain.startswith("JSON"):
        return plain
    plain = _VALUE.sub("…", plain[:1].lower() + plain[1:])
    return f"{path}: {plain}" if path else plain
