"""Example requests, as a sender would send them for a new event."""

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
"""A member with a random value, for events that are identified by the hash of their body."""

DEFAULT_TYPE: Final = "example"
"""The type of an example that has no value where the source reads the type."""

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class Example(msgspec.Struct):
    """An example request of a provider: headers, a query, and a JSON body or a form."""

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
    """Build an unsigned request from an example, or from a body of your own.

    The event gets a new id, unless `id` sets one or the id is part of your own body. Raises
    ConfigurationError if the preset does not allow `id` or `type` to be set.
    """
    example = example or Example(json={})
    headers = {"content-type": FORM if example.form else JSON, **example.headers}
    outgoing = OutgoingRequest(headers, _encode_body(example) if body is None else body, url=url)
    if example.query:
        outgoing.url = with_parameters(url, example.query)
    if type is not None:
        _put_type(outgoing, preset, type)
    elif body is None and preset.types and not _has_type(outgoing, preset):
        _put_type(outgoing, preset, DEFAULT_TYPE)
    selector = _id_selector(outgoing, preset)
    if id is not None:
        _put_id(outgoing, preset, selector, id)
    elif body is None or isinstance(selector, HeaderSelector):
        _put_new_id(outgoing, preset, selector)
    return outgoing


def _encode_body(example: Example) -> bytes:
    return urlencode(example.form).encode() if example.form else msgspec.json.encode(example.json)


# Reading and writing the events in a request.

_EditEvent = Callable[[dict[str, Any], int], None]


def _edit_events(outgoing: OutgoingRequest, preset: Preset, edit: _EditEvent) -> None:
    """Apply an edit to each event in the body. Raises ConfigurationError."""
    form_field, paths = preset.layout.form_field, preset.layout.paths
    inner = outgoing
    if form_field is not None:
        inner = OutgoingRequest({}, form_field.read(outgoing.request()) or b"")
    document = inner.document()
    for index, event in enumerate([document] if paths is None else paths.find(document)):
        if not isinstance(event, dict):
            raise ConfigurationError("an event in the body is not a JSON object")
        edit(event, index)
    inner.body = msgspec.json.encode(document)
    if form_field is not None:
        outgoing.put(form_field, inner.body.decode())


def _read_value(outgoing: OutgoingRequest, preset: Preset, selector: Selector) -> Any:
    """Return the value that a selector finds in the first event, or None."""
    request = outgoing.request()
    if not isinstance(selector, JsonSelector):
        raw = selector.read(request)
        return None if raw is None else raw.decode("latin-1")
    (first, *_) = preset.layout.unpack(request) or [request]
    value = selector.find(first.document)
    return None if value is msgspec.UNSET else value


def _first_present(
    outgoing: OutgoingRequest, preset: Preset, selectors: tuple[Selector, ...]
) -> Selector:
    """Return the first selector that finds a value, else the preferred one."""
    for selector in selectors:
        if isinstance(selector, BodyHashSelector):
            continue
        if _read_value(outgoing, preset, selector) is not None:
            return selector
    return selectors[0]


def _put(
    outgoing: OutgoingRequest, preset: Preset, selector: Selector, value_at: Callable[[int], str]
) -> None:
    """Write a value to the request, or to each event if the selector reads the body."""
    if isinstance(selector, JsonSelector):
        path = selector.path
        _edit_events(
            outgoing, preset, lambda event, index: put_member(event, path, value_at(index))
        )
    else:
        outgoing.put(selector, value_at(0))


# The type.


def _has_type(outgoing: OutgoingRequest, preset: Preset) -> bool:
    selector = _first_present(outgoing, preset, parse_selectors(preset.types[0]))
    return _read_value(outgoing, preset, selector) is not None


def _put_type(outgoing: OutgoingRequest, preset: Preset, type: str) -> None:
    """Write a type, split at its dots if the preset reads it from several selectors."""
    if not preset.types:
        raise ConfigurationError(f"the preset {preset.name!r} has no selector for a type")
    parts = type.split(".", len(preset.types) - 1)
    for text, part in zip_longest(preset.types, parts):
        selector = _first_present(outgoing, preset, parse_selectors(text))
        if part is not None:
            _put(outgoing, preset, selector, _constant(part))
        elif isinstance(selector, JsonSelector):
            _edit_events(outgoing, preset, _removing(selector.path))


def _constant(value: str) -> Callable[[int], str]:
    return lambda _: value


def _removing(path: tuple[str, ...]) -> _EditEvent:
    def remove(event: Any, _: int) -> None:
        for name in path[:-1]:
            event = event.get(name) if isinstance(event, dict) else None
        if isinstance(event, dict):
            event.pop(path[-1], None)

    return remove


# The id.


def _id_selector(outgoing: OutgoingRequest, preset: Preset) -> Selector:
    """Return the selector of the part that makes an id unique: not the type, preferably an id."""
    parts = [text for text in preset.ids if text not in preset.types]
    named_id = [text for text in parts if "id" in text.lower()]
    return _first_present(outgoing, preset, parse_selectors((named_id or parts or preset.ids)[0]))


def _put_id(outgoing: OutgoingRequest, preset: Preset, selector: Selector, id: str) -> None:
    if isinstance(selector, BodyHashSelector | HeaderHashSelector):
        raise ConfigurationError(
            f"the id cannot be set: the preset {preset.name!r} identifies events by a hash"
        )
    _put(outgoing, preset, selector, lambda index: f"{id}-{index + 1}" if index else id)


def _put_new_id(outgoing: OutgoingRequest, preset: Preset, selector: Selector) -> None:
    if isinstance(selector, HeaderHashSelector):
        return  # signing makes a new token, and with it a new id
    if not isinstance(selector, BodyHashSelector):
        old_id = _read_value(outgoing, preset, selector)
        _put(outgoing, preset, selector, lambda _: _new_id_like(old_id))
    elif outgoing.headers.get("content-type") == FORM and preset.layout.form_field is None:
        outgoing.put(FieldSelector("form", NONCE), secrets.token_hex(8))
    else:
        with suppress(ConfigurationError):  # a body that is not JSON is sent unchanged
            _edit_events(outgoing, preset, _put_nonce)


def _put_nonce(event: dict[str, Any], _: int) -> None:
    put_member(event, (NONCE,), secrets.token_hex(8))


def _new_id_like(old_id: Any) -> str:
    """Return a new id in the style of another."""
    if isinstance(old_id, int):
        return str(10**9 + secrets.randbelow(9 * 10**9))
    if not isinstance(old_id, str):
        return secrets.token_hex(8)
    if _UUID.fullmatch(old_id):
        return str(uuid4())
    prefix = re.match(r"(.*[_\-:/.])", old_id)
    return (prefix[1] if prefix else "") + secrets.token_hex(8)
