"""Requests that contain several events. Each event is recorded separately, with its own bytes.

A path to the events is text: ``json:[]`` is a list, ``json:events[]`` a list in an object, and
``json:entry[].changes[]`` lists inside the items of a list. Alternatives are separated by ``|``:
the first path that fits is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.body_kind import BodyKind
from onceward.sources.json_text import is_too_deep
from onceward.sources.request import Request
from onceward.sources.selectors import Selector

MAX_EVENTS: Final = 5_000
_STEP: Final = re.compile(r"([^.\[\]]+)|(\[\])")
_NAMES: Final = r"[^.\[\]]+(?:\.[^.\[\]]+)*"
_PATH_TEXT: Final = re.compile(rf"json:(?:{_NAMES})?\[\](?:\.{_NAMES}\[\])*")

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])

JsonPath = tuple[str | None, ...]
"""The steps of a path: the name of a member, or None for the items of a list."""


def _json_path(text: str) -> JsonPath:
    if not _PATH_TEXT.fullmatch(text):
        raise ConfigurationError(
            f"{text!r} is not a path to events; write json:[] or json:some.path[]"
        )
    return tuple(name or None for name, _ in _STEP.findall(text.removeprefix("json:")))


@dataclass(frozen=True, slots=True)
class EventPaths:
    """The JSON paths to the events of a request. Raises ConfigurationError if they are invalid."""

    text: str
    _paths: tuple[JsonPath, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_paths", tuple(_json_path(text) for text in self.text.split("|")))

    def split(self, body: bytes) -> list[bytes]:
        """Return the bytes of each event.

        A body that no path fits, that is nested too deeply, or with more than `MAX_EVENTS` events
        is returned whole.
        """
        if is_too_deep(body):
            return [body]
        for path in self._paths:
            values: list[msgspec.Raw] = [msgspec.Raw(body)]
            try:
                for step in path:
                    values = [child for value in values for child in _children(value, step)]
            except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
                continue
            return [bytes(value) for value in values] if len(values) <= MAX_EVENTS else [body]
        return [body]

    def find(self, document: Any) -> list[Any]:
        """Return the events in a decoded body. Raises ConfigurationError if no path fits."""
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
    """Where a request carries its events: in a form field, in lists, or as the whole body."""

    form_field: Selector | None = None
    paths: EventPaths | None = None
    body_kind: BodyKind | None = None
    """The kind of the form field or body; None for any."""

    def check(self, request: Request) -> None:
        """Raise SignatureRejected if a signed request cannot contain events of the provider."""
        if self.form_field is None and self.body_kind is None:
            return
        body = request.body if self.form_field is None else self.form_field.read(request)
        if body is None:
            raise SignatureRejected(f"no {self.form_field}", RejectionCause.MISSING)
        if self.body_kind is not None and not self.body_kind.fits(body):
            raise SignatureRejected(
                f"{self.form_field or 'the body'} is not {self.body_kind.value}: it is signed, but "
                "no event of this provider",
                RejectionCause.MALFORMED,
            )

    def unpack(self, request: Request) -> list[Request]:
        """Return one request per event, with the original headers and the event's own bytes.

        A request without the expected form field is returned whole.
        """
        if self.form_field is None and self.paths is None:
            return [request]
        body = request.body if self.form_field is None else self.form_field.read(request)
        if body is None:
            return [request]
        if self.form_field is not None:
            # Some transports drop a trailing line break; an event must have the same bytes anyway.
            body = body.rstrip(b"\r\n")
        events = [body] if self.paths is None else self.paths.split(body)
        return [Request(request.headers, event, url=request.url) for event in events]


def _children(value: msgspec.Raw, step: str | None) -> list[Any]:
    """Return the items of a list, or the member of an object. Raises KeyError."""
    if step is None:
        return _ITEMS.decode(value)
    return [_MEMBERS.decode(value)[step]]
