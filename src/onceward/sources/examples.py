"""A request as a sender would make it, about an event that nobody has seen."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import urlencode
from uuid import uuid4

import msgspec

from onceward.errors import ConfigurationError
from onceward.sources.outgoing import OutgoingRequest, put_member, with_parameters
from onceward.sources.presets import Preset
from onceward.sources.selectors import (
    BodyHashSelector,
    FieldSelector,
    HeaderHashSelector,
    HeaderSelector,
    JsonSelector,
    Selector,
    parse_selectors,
)

FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/json"
NONCE: Final = "onceward_example"
"""A member that makes one example unlike another, where its bytes are all that it is known by."""

UNNAMED: Final = "example"
"""The type of an example whose own has another place than the source's."""

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class Example(msgspec.Struct):
    """An example request of a provider: headers, and a JSON body or a form."""

    headers: dict[str, str] = {}
    json: Any = None
    form: dict[str, str] = {}
    query: dict[str, str] = {}


def make_example(
    preset: Preset,
    example: Example | None = None,
    *,
    url: str,
    id: str | None = None,
    type: str | None = None,
    body: bytes | None = None,
) -> OutgoingRequest:
    """Make a request to be signed: the `example`, or `body`, under a new id.

    With `id` it is that one, and with `type` of that type. Raises ConfigurationError where the
    sender has no place for one of them.
    """
    entry = example or Example(json={})
    headers = {"content-type": FORM if entry.form else JSON, **entry.headers}
    draft = OutgoingRequest(headers, _body(entry) if body is None else body, url=url)
    if entry.query:
        draft.url = with_parameters(url, entry.query)
    if type is not None:
        _put_type(draft, preset, type)
    elif body is None and preset.types and not _has_type(draft, preset):
        _put_type(draft, preset, UNNAMED)
    place = _id_place(draft, preset)
    if id is not None:
        _put_id(draft, preset, place, id)
    elif body is None or isinstance(place, HeaderSelector):
        _put_new_id(draft, preset, place)
    return draft


def _body(entry: Example) -> bytes:
    return urlencode(entry.form).encode() if entry.form else msgspec.json.encode(entry.json)


# The events of a request, wherever they are packed.

_Edit = Callable[[dict[str, Any], int], None]


def _edit_events(draft: OutgoingRequest, preset: Preset, edit: _Edit) -> None:
    """Have each event edited: the body, or the parts of it. Raises ConfigurationError."""
    form_field, split = preset.layout.form_field, preset.layout.split
    inner = (
        OutgoingRequest({}, form_field.bytes_of(draft.request()) or b"") if form_field else draft
    )
    document = inner.document()
    for number, event in enumerate([document] if split is None else split.values(document)):
        if not isinstance(event, dict):
            raise ConfigurationError("an event of the body is not an object")
        edit(event, number)
    inner.body = msgspec.json.encode(document)
    if form_field:
        draft.put(form_field, inner.body.decode())


def _value(draft: OutgoingRequest, preset: Preset, place: Selector) -> Any:
    """What stands in a place of the first event; None where nothing does."""
    request = draft.request()
    if not isinstance(place, JsonSelector):
        found = place.bytes_of(request)
        return None if found is None else found.decode("latin-1")
    (first, *_) = preset.layout.parts(request) or [request]
    value = place.of(first.document)
    return None if value is msgspec.UNSET else value


# The type.


def _has_type(draft: OutgoingRequest, preset: Preset) -> bool:
    places = parse_selectors(preset.types[0])
    return _value(draft, preset, _present(draft, preset, places)) is not None


def _put_type(draft: OutgoingRequest, preset: Preset, type: str) -> None:
    """Write a type, which is of several parts where the sender's is."""
    if not preset.types:
        raise ConfigurationError(f"the preset {preset.name!r} has no place for a type")
    parts = type.split(".", len(preset.types) - 1)
    for text, part in zip_longest(preset.types, parts):
        place = _present(draft, preset, parse_selectors(text))
        if part is not None:
            _put(draft, preset, place, _always(part))
        elif isinstance(place, JsonSelector):
            _edit_events(draft, preset, _dropping(place.path))


def _always(value: str) -> Callable[[int], str]:
    return lambda _: value


def _dropping(path: tuple[str, ...]) -> _Edit:
    def drop(event: Any, _: int) -> None:
        for name in path[:-1]:
            event = event.get(name) if isinstance(event, dict) else None
        if isinstance(event, dict):
            event.pop(path[-1], None)

    return drop


# The id.


def _id_place(draft: OutgoingRequest, preset: Preset) -> Selector:
    """Where the part of the id is that makes it unlike others: not the type, and best an id."""
    parts = [text for text in preset.ids if text not in preset.types]
    named = [text for text in parts if "id" in text.lower()]
    return _present(draft, preset, parse_selectors((named or parts or preset.ids)[0]))


def _present(draft: OutgoingRequest, preset: Preset, places: tuple[Selector, ...]) -> Selector:
    """The first of the places that the example has; else the first."""
    for place in places:
        if not isinstance(place, BodyHashSelector) and _value(draft, preset, place) is not None:
            return place
    return places[0]


def _put(
    draft: OutgoingRequest, preset: Preset, place: Selector, value: Callable[[int], str]
) -> None:
    """Write a value to a place: to that of each event, where it is in the events."""
    if isinstance(place, JsonSelector):
        _edit_events(
            draft, preset, lambda event, number: put_member(event, place.path, value(number))
        )
    else:
        draft.put(place, value(0))


def _put_id(draft: OutgoingRequest, preset: Preset, place: Selector, id: str) -> None:
    if isinstance(place, BodyHashSelector | HeaderHashSelector):
        message = f"the events of {preset.name!r} have no id: they are known by their bytes"
        raise ConfigurationError(message)
    _put(draft, preset, place, lambda number: f"{id}-{number + 1}" if number else id)


def _put_new_id(draft: OutgoingRequest, preset: Preset, place: Selector) -> None:
    if isinstance(place, HeaderHashSelector):
        return  # it is another one each time
    if not isinstance(place, BodyHashSelector):
        old = _value(draft, preset, place)
        _put(draft, preset, place, lambda _: _new_like(old))
    elif draft.headers.get("content-type") == FORM and preset.layout.form_field is None:
        draft.put(FieldSelector("form", NONCE), secrets.token_hex(8))
    else:
        with suppress(ConfigurationError):  # it is not JSON, and stays what it is
            _edit_events(draft, preset, _marked)


def _marked(event: dict[str, Any], _: int) -> None:
    put_member(event, (NONCE,), _new_like(None))


def _new_like(old: Any) -> str:
    """An id that is new, and looks like another."""
    if isinstance(old, int):
        return str(10**9 + secrets.randbelow(9 * 10**9))
    if not isinstance(old, str):
        return secrets.token_hex(8)
    if _UUID.fullmatch(old):
        return str(uuid4())
    before = re.match(r"(.*[_\-:/.])", old)
    return (before[1] if before else "") + secrets.token_hex(8)
