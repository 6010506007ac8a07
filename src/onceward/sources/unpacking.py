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

EVENTS_MOST: Final = 5_000
_STEP: Final = re.compile(r"([^.\[\]]+)|(\[\])")
_NAMES: Final = r"[^.\[\]]+(?:\.[^.\[\]]+)*"
_TEXT: Final = re.compile(rf"json:(?:{_NAMES})?\[\](?:\.{_NAMES}\[\])*")

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])

JsonPath = tuple[str | None, ...]
"""Names that lead on, and None for a list."""


def _json_path(text: str) -> JsonPath:
    if not _TEXT.fullmatch(text):
        message = f"{text!r} is no place of events: write json:[] or json:some.path[]"
        raise ConfigurationError(message)
    return tuple(name or None for name, _ in _STEP.findall(text.removeprefix("json:")))


@dataclass(frozen=True, slots=True)
class Split:
    """Where the events of a request are. Raises ConfigurationError for a text that is no such."""

    text: str
    _paths: tuple[JsonPath, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_paths", tuple(_json_path(text) for text in self.text.split("|")))

    def bodies(self, body: bytes) -> list[bytes]:
        """The bytes of each event; the whole body where it is not as expected, or too much."""
        for way in self._paths:
            values: list[msgspec.Raw] = [msgspec.Raw(body)]
            try:
                for step in way:
                    values = [inner for value in values for inner in _inner(value, step)]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
                continue
            return [bytes(value) for value in values] if len(values) <= EVENTS_MOST else [body]
        return [body]

    def values(self, document: Any) -> list[Any]:
        """The events of a decoded body. Raises ConfigurationError where it is not as expected."""
        for way in self._paths:
            values = [document]
            try:
                for step in way:
                    values = [it for one in values for it in (one if step is None else [one[step]])]
            except (TypeError, KeyError):
                continue
            return values
        raise ConfigurationError(f"the body has no events at {self.text}")


@dataclass(frozen=True, slots=True)
class EventLayout:
    """How events are packed into a request: in a field of a form, several together, or neither."""

    form_field: Selector | None = None
    split: Split | None = None

    def parts(self, request: Request) -> list[Request]:
        """A request for each event, with the same headers and its own bytes."""
        if self.form_field is None and self.split is None:
            return [request]
        body = request.body if self.form_field is None else self.form_field.bytes_of(request)
        if body is None:  # not as expected: it stays whole
            return [request]
        if self.form_field is not None:
            body = body.rstrip(b"\r\n")  # which some ways lose
        bodies = [body] if self.split is None else self.split.bodies(body)
        return [Request(request.headers, part, url=request.url) for part in bodies]


def _inner(value: msgspec.Raw, step: str | None) -> list[Any]:
    """What a value holds: the items of a list, or the member of that name."""
    if step is None:
        return _ITEMS.decode(value)
    return [_MEMBERS.decode(value)[step]]
