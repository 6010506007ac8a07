"""Where the id, the type and the reference are in a request.

Places are written as text, as in `onceward.request`. Of a body only what is asked for is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from onceward.errors import ConfigurationError, NoEventId
from onceward.model.events import Identity, invalid_text_reason
from onceward.sources.request import Request
from onceward.sources.selectors import (
    BODY_HASH,
    HeaderSelector,
    JsonSelector,
    Selector,
    parse_selectors,
    struct_field,
)

Choice = tuple[Selector, ...]
"""Places of which the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no usable text in a place."""

    text: str
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class Locators:
    """Where a source's requests keep their id, type and reference."""

    id: tuple[Choice, ...]
    type: tuple[Choice, ...]
    reference: Choice | None
    or_hash: bool
    """Whether the body's hash stands for an id that is not there."""
    body: msgspec.json.Decoder[Any] | None
    """Decodes what is asked for of a body; None where nothing is."""


def make_locators(
    id: Sequence[str], type: Sequence[str], reference: str | None, *, is_part: bool = False
) -> Locators:
    """Read places from their texts. Raises ConfigurationError with every fault found.

    Where an id has several parts, and where it is that of a part of a request (`is_part`), one that
    is not there is no reason to refuse what was signed.
    """
    texts = [*id, *type] if reference is None else [*id, *type, reference]
    choices: dict[str, Choice] = {}
    faults: list[str] = [] if id else ["it has no place for the id"]
    for text in texts:
        try:
            choices[text] = parse_selectors(text)
        except ConfigurationError as error:
            faults.extend(error.faults)
    places = [place for choice in choices.values() for place in choice]
    paths = list(dict.fromkeys(place.path for place in places if isinstance(place, JsonSelector)))
    faults.extend(_overlaps(paths))
    if faults:
        raise ConfigurationError(faults)
    return Locators(
        id=tuple(choices[text] for text in id),
        type=tuple(choices[text] for text in type),
        reference=None if reference is None else choices[reference],
        or_hash=is_part or len(id) > 1,
        body=msgspec.json.Decoder(_shape(paths)) if paths else None,
    )


def identify(locators: Locators, request: Request) -> Identity:
    """Say what a request is about.

    Raises NoEventId where there is no usable id. A type that is not usable becomes "",
    a reference None: what was signed is not refused for those.
    """
    document = _document(locators, request)
    event_id = _event_id(locators.id, request, document)
    if isinstance(event_id, Fault):
        if not locators.or_hash:
            raise NoEventId(event_id.text)
        event_id = BODY_HASH.bytes_of(request).decode()
    return _described(event_id, locators, request, document)


def describe(locators: Locators, request: Request) -> Identity:
    """Say what a request is about, whatever its id."""
    return _described("", locators, request, _document(locators, request))


def in_headers(choices: Sequence[Choice]) -> bool:
    """Whether one of the places is in a header."""
    return any(isinstance(place, HeaderSelector) for choice in choices for place in choice)


def _document(locators: Locators, request: Request) -> Any:
    return _NOT_READ if locators.body is None else _read(locators.body, request.body)


def _described(event_id: str, locators: Locators, request: Request, document: Any) -> Identity:
    event_type = _type(locators.type, request, document)
    if locators.reference is None:
        return Identity(event_id, event_type)
    reference = _text_at(locators.reference, request, document)
    return Identity(event_id, event_type, None if isinstance(reference, Fault) else reference)


def _event_id(choices: Sequence[Choice], request: Request, document: Any) -> str | Fault:
    """The id, of one part or of several with ``|`` between."""
    if len(choices) == 1:
        return _text_at(choices[0], request, document)
    parts = []
    for choice in choices:
        part = _text_at(choice, request, document)
        if isinstance(part, Fault):
            return part
        parts.append(_plain(part))
    joined = "|".join(parts)
    fault = invalid_text_reason(joined)
    return joined if fault is None else Fault(f"the id {fault}")


def _plain(part: str) -> str:
    """A part of an id in which nothing looks like the end of it."""
    return part.replace("%", "%25").replace("|", "%7C")


def _overlaps(paths: Iterable[tuple[str, ...]]) -> list[str]:
    """A place inside another can never be read together with it."""
    known = set(paths)
    return [
        f"json:{'.'.join(path)} lies inside json:{'.'.join(path[:length])}; one of them is wrong"
        for path in sorted(known)
        for length in range(1, len(path))
        if path[:length] in known
    ]


def _shape(paths: Iterable[tuple[str, ...]]) -> type[msgspec.Struct]:
    """A struct that holds what the paths lead to and lets the rest of a body pass undecoded."""
    inner: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in paths:
        inner.setdefault(first, []).append(tuple(rest))
    fields: list[tuple[str, Any, Any]] = [
        (struct_field(name), _shape(rests) | None, None)
        if any(rests)
        else (struct_field(name), Any, msgspec.UNSET)
        for name, rests in inner.items()
    ]
    return msgspec.defstruct(
        "Body", fields, rename={struct_field(name): name for name in inner}, gc=False
    )


_NOT_READ: Final = Fault("the body was not read")


def _read(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """What is asked for of the body, as a struct; else all of it, as a dict; else the fault."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return read_tolerantly(body)


def read_tolerantly(body: bytes) -> dict[str, Any] | Fault:
    """Read a body that does not fit, or that only a tolerant reader takes for JSON.

    Bytes that are not UTF-8 become lone surrogates, which no id may hold: two ids that differ only
    in such bytes are refused and never taken for one.
    """
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        document = _TOLERANT.decode(text)
    except RecursionError:
        return Fault("the body is nested too deeply")
    except json.JSONDecodeError as error:
        return Fault(f"the body is not JSON (at character {error.pos})")
    if not isinstance(document, dict):
        return Fault(f"the body is {_kind(document)}, not an object")
    return document


# Whole numbers stay text: that is what an id becomes, and there is no limit on their digits.
_TOLERANT: Final = json.JSONDecoder(strict=False, parse_int=str)


def _text_at(choice: Choice, request: Request, document: Any) -> str | Fault:
    """The text in the first of the places that is there; the fault of the first, where none is."""
    first: Fault | None = None
    for place in choice:
        found = usable_text(place, _value_at(place, request, document))
        if isinstance(found, str):
            return found
        first = first or _explained(found, place, document)
        if not found.is_absent:
            break
    return first or Fault("there is no place to look", is_absent=True)


def _explained(fault: Fault, place: Selector, document: Any) -> Fault:
    if isinstance(place, JsonSelector) and isinstance(document, Fault):
        return Fault(f"{place} is missing: {document.text}", is_absent=True)
    return fault


def _value_at(place: Selector, request: Request, document: Any) -> object:
    if isinstance(place, JsonSelector):
        try:
            return place.of_struct(document)
        except AttributeError:  # the way there is null, or the document is not a struct
            return place.of(document)
    value = place.bytes_of(request)
    return msgspec.UNSET if value is None else value.decode(errors="surrogateescape")


def usable_text(place: object, value: object) -> str | Fault:
    """The value as a text that can be stored, or why it is none."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, int) and not isinstance(value, bool):
        text = str(value)
    elif value is msgspec.UNSET:
        return Fault(f"{place} is missing", is_absent=True)
    else:
        return Fault(f"{place} is {_kind(value)}; it must be a string", is_absent=value is None)
    fault = invalid_text_reason(text)
    return text if fault is None else Fault(f"{place} {fault}")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case dict():
            return "an object"
        case list():
            return "a list"
        case float():
            return "a number with a fraction"
        case _:
            return "a string or a number"


def _type(choices: Sequence[Choice], request: Request, document: Any) -> str:
    """The type, of one part or of several with dots between; later parts may be absent."""
    parts: list[str] = []
    for choice in choices:
        part = _text_at(choice, request, document)
        if isinstance(part, str):
            parts.append(part)
        elif not parts or not part.is_absent:
            return ""
    joined = ".".join(parts)
    return joined if len(parts) == 1 or invalid_text_reason(joined) is None else ""
