"""Where the id, the type and the reference are in a request.

A place is written as text: ``header:X-GitHub-Delivery`` or ``json:data.object.id``. Places are
checked once, when a source is configured. Of a body only what is asked for is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec

from onceward.errors import ConfigurationError, RequestRefused
from onceward.model import Identity, text_fault
from onceward.verify import Headers, header_key


@dataclass(frozen=True, slots=True)
class HeaderPlace:
    """A value in a header."""

    name: str
    key: bytes

    def __str__(self) -> str:
        return f"header {self.name}"


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A value in a JSON body, by the names that lead to it."""

    path: tuple[str, ...]
    field: attrgetter[Any]
    """Takes the value out of the struct that `_shape` makes."""

    def __str__(self) -> str:
        return f"json:{'.'.join(self.path)}"


Place = HeaderPlace | JsonPlace


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no usable text in a place."""

    text: str
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class Locators:
    """Where a source's requests keep their id, type and reference."""

    id: Place
    type: tuple[Place, ...]
    reference: Place | None
    body: msgspec.json.Decoder[Any] | None
    """Decodes what is asked for of a body; None where nothing is."""


def make_locators(id: str, type: Sequence[str], reference: str | None) -> Locators:
    """Read places from their texts. Raises ConfigurationError with every fault found."""
    texts = [id, *type] if reference is None else [id, *type, reference]
    places: dict[str, Place] = {}
    faults: list[str] = []
    for text in texts:
        try:
            places[text] = _place(text)
        except ConfigurationError as error:
            faults.extend(error.faults)
    paths = [place.path for place in places.values() if isinstance(place, JsonPlace)]
    faults.extend(_overlaps(paths))
    if faults:
        raise ConfigurationError(faults)
    return Locators(
        id=places[id],
        type=tuple(places[text] for text in type),
        reference=None if reference is None else places[reference],
        body=msgspec.json.Decoder(_shape(paths)) if paths else None,
    )


def identify(locators: Locators, headers: Headers, body: bytes) -> Identity:
    """Say what a request is about.

    Raises RequestRefused (422) where there is no usable id. A type that is not usable becomes "",
    a reference None: what was signed is not refused for those.
    """
    document = _NOT_READ if locators.body is None else _read(locators.body, body)
    event_id = _text_at(locators.id, headers, document)
    if isinstance(event_id, Fault):
        raise RequestRefused(422, "no_event_id", event_id.text)
    event_type = _type(locators.type, headers, document)
    if locators.reference is None:
        return Identity(event_id, event_type)
    reference = _text_at(locators.reference, headers, document)
    return Identity(event_id, event_type, None if isinstance(reference, Fault) else reference)


class _Envelope(msgspec.Struct, gc=False):
    event_id: Any = msgspec.UNSET
    event_type: Any = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    reference: Any = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_MEMBERS: Final = _Envelope.__struct_fields__


def identify_envelope(body: bytes) -> Identity:
    """Say what a body for ``POST /events/ingest`` is about; its payload is not decoded.

    Raises RequestRefused (422) with a code and a message for the first fault found.
    """
    envelope = _envelope(body)
    event_id = _required("event_id", envelope.event_id)
    event_type = _required("event_type", envelope.event_type)
    if envelope.payload is msgspec.UNSET:
        raise _refused("no_payload", "payload is missing")
    if envelope.reference is None:
        return Identity(event_id, event_type)
    reference = _usable("reference", envelope.reference)
    if isinstance(reference, Fault):
        raise _refused("bad_reference", reference.text)
    return Identity(event_id, event_type, reference)


def _envelope(body: bytes) -> _Envelope:
    try:
        return _ENVELOPE.decode(body)
    except msgspec.ValidationError:  # not an object, or a number beyond the decoder's range
        members = _read_tolerantly(body)
    except RecursionError:
        members = Fault("the body is nested too deeply")
    except (msgspec.DecodeError, UnicodeDecodeError):
        members = Fault("the body is not JSON")
    if isinstance(members, Fault):
        raise _refused("invalid_json", members.text)
    return _Envelope(**{name: members[name] for name in _MEMBERS if name in members})


def _required(name: str, value: object) -> str:
    text = _usable(name, value)
    if isinstance(text, Fault):
        raise _refused(f"no_{name}", text.text)
    return text


def _refused(code: str, message: str) -> RequestRefused:
    return RequestRefused(422, code, message)


def _place(text: str) -> Place:
    kind, _, rest = text.partition(":")
    if kind == "header":
        return HeaderPlace(rest, header_key(rest))
    if kind != "json":
        raise ConfigurationError(f"{text!r} is no place: write header:Some-Name or json:some.path")
    path = tuple(rest.split("."))
    if "[" in rest:
        raise ConfigurationError(f"{text!r} points into a list; a request holds one event")
    if "" in path:
        raise ConfigurationError(f"{text!r} has an empty name in its path")
    return JsonPlace(path, attrgetter(".".join(_field(name) for name in path)))


def _overlaps(paths: Iterable[tuple[str, ...]]) -> list[str]:
    """A place inside another can never be read together with it."""
    known = set(paths)
    return [
        f"json:{'.'.join(path)} lies inside json:{'.'.join(path[:length])}; one of them is wrong"
        for path in sorted(known)
        for length in range(1, len(path))
        if path[:length] in known
    ]


def _field(name: str) -> str:
    """An attribute's name for any JSON name."""
    return f"k{name.encode(errors='surrogatepass').hex()}"


def _shape(paths: Iterable[tuple[str, ...]]) -> type[msgspec.Struct]:
    """A struct that holds what the paths lead to and lets the rest of a body pass undecoded."""
    inner: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in paths:
        inner.setdefault(first, []).append(tuple(rest))
    fields: list[tuple[str, Any, Any]] = [
        (_field(name), _shape(rests) | None, None)
        if any(rests)
        else (_field(name), Any, msgspec.UNSET)
        for name, rests in inner.items()
    ]
    return msgspec.defstruct(
        "Body", fields, rename={_field(name): name for name in inner}, gc=False
    )


_NOT_READ: Final = Fault("the body was not read")


def _read(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """What is asked for of the body, as a struct; else all of it, as a dict; else the fault."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_tolerantly(body)


def _read_tolerantly(body: bytes) -> dict[str, Any] | Fault:
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


def _text_at(place: Place, headers: Headers, document: Any) -> str | Fault:
    if isinstance(place, HeaderPlace):
        return _usable(place, _header_value(place, headers))
    try:
        value = place.field(document)
    except AttributeError:  # the way there is null, or the document is not a struct
        if isinstance(document, Fault):
            return Fault(f"{place} is missing: {document.text}", is_absent=True)
        value = _walk(place.path, document)
    return _usable(place, value)


def _header_value(place: HeaderPlace, headers: Headers) -> object:
    value = headers.get(place.key)
    if value is None:
        return msgspec.UNSET
    return value.decode(errors="surrogateescape")


def _walk(path: Iterable[str], value: Any) -> object:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return msgspec.UNSET
        value = value[name]
    return value


def _usable(place: object, value: object) -> str | Fault:
    """The value as a text that can be stored, or why it is none."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, int) and not isinstance(value, bool):
        text = str(value)
    elif value is msgspec.UNSET:
        return Fault(f"{place} is missing", is_absent=True)
    else:
        return Fault(f"{place} is {_kind(value)}; it must be a string", is_absent=value is None)
    fault = text_fault(text)
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


def _type(places: Sequence[Place], headers: Headers, document: Any) -> str:
    """The type, of one part or of several with dots between; later parts may be absent."""
    parts: list[str] = []
    for place in places:
        part = _text_at(place, headers, document)
        if isinstance(part, str):
            parts.append(part)
        elif not parts or not part.is_absent:
            return ""
    joined = ".".join(parts)
    return joined if len(parts) == 1 or text_fault(joined) is None else ""
