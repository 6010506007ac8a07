"""Requests that hold several events: each is recorded as one of its own, with its own bytes.

Where they are is written as text: ``json:[]`` is a list, ``json:events[]`` a list in an object,
``json:entry[].changes[]`` lists in the items of a list. With ``|`` between several, the first that
fits counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from onceward.errors import ConfigurationError
from onceward.sources.request import Request
from onceward.sources.selectors import Selector

MAX_EVENTS: Final = 5_000
_STEP: Final = re.compile(r"([^.\[\]]+)|(\[\])")
_NAMES: Final = r"[^.\[\]]+(?:\.[^.\[\]]+)*"
_PATH_TEXT: Final = re.compile(rf"json:(?:{_NAMES})?\[\](?:\.{_NAMES}\[\])*")

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])

JsonPath = tuple[str | None, ...]
"""Names that lead on, and None for a list."""


def _json_path(text: str) -> JsonPath:
    if not _PATH_TEXT.fullmatch(text):
        message = f"{text!r} is no place of events: write json:[] or json:some.path[]"
        raise ConfigurationError(message)
    return tuple(name or None for name, _ in _STEP.findall(text.removeprefix("json:")))


@dataclass(frozen=True, slots=True)
class EventPaths:
    """Where the events of a request are. Raises ConfigurationError for a text that is no such."""

    text: str
    _paths: tuple[JsonPath, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_paths", tuple(_json_path(text) for text in self.text.split("|")))

    def split(self, body: bytes) -> list[bytes]:
        """The bytes of each event; the whole body where it is not as expected, or too much."""
        for path in self._paths:
            values: list[msgspec.Raw] = [msgspec.Raw(body)]
            try:
                for step in path:
                    values = [child for value in values for child in _children(value, step)]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
                continue
            return [bytes(value) for value in values] if len(values) <= MAX_EVENTS else [body]
        return [body]

    def find(self, document: Any) -> list[Any]:
        """The events of a decoded body. Raises ConfigurationError where it is not as expected."""
        for path in self._paths:
            values = [document]
            try:
                for step in path:
                    values = [
                        child
                        for value in values
                        for child in (value if step is None else [value[step]])
                    ]
            except (TypeError, KeyError):
                continue
            return values
        raise ConfigurationError(f"the body has no events at {self.text}")


@dataclass(frozen=True, slots=True)
class EventLayout:
    """How events are packed into a request: in a field of a form, several together, or neither."""

    form_field: Selector | None = None
    paths: EventPaths | None = None

    def unpack(self, request: Request) -> list[Request]:
        """A request for each event, with the same headers and its own bytes."""
        if self.form_field is None and self.paths is None:
            return [request]
        body = request.body if self.form_field is None else self.form_field.read(request)
        if body is None:  # not as expected: it stays whole
            return [request]
        if self.form_field is not None:
            body = body.rstrip(b"\r\n")  # which some ways lose
        events = [body] if self.paths is None else self.paths.split(body)
        return [Request(request.headers, event, url=request.url) for event in events]


def _children(value: msgspec.Raw, step: str | None) -> list[Any]:
    """What a value holds: the items of a list, or the member of that name."""
    if step is None:
        return _ITEMS.decode(value)
    return [_MEMBERS.decode(value)[step]]
