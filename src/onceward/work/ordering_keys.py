"""Ordering keys: the value in a payload that orders the jobs of a handler."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from onceward.errors import MalformedPayload, PermanentError
from onceward.model.events import INGEST_SOURCE, invalid_text_reason
from onceward.work.payload import decode_without_reason

_HEADERS: Final = msgspec.json.Decoder(dict[str, str])
_PREFIXES: Final = ("json:", "$.", "/")
"""How paths begin in other notations."""
_KINDS: Final = {bool: "a boolean", dict: "an object", list: "a list"}


def ordering_key_fault(path: str) -> str | None:
    """Return why a text cannot be the path of an ordering key; None if it can."""
    if prefix := next((text for text in _PREFIXES if path.startswith(text)), None):
        names = path.removeprefix(prefix)
        dotted = names.replace("/", ".") if prefix == "/" else names
        return f"is {path!r}; write {dotted!r}"
    if path.startswith("header:"):
        return f"is {path!r}; a key is read from the payload: use a path such as 'data.object.id'"
    if path != path.strip():
        return f"is {path!r}, with a space at an end; write {path.strip()!r}"
    if "[" in path:
        return f"is {path!r}; write the position in a list as a number: 'items.0.id'"
    if "" in path.split("."):
        return f"is {path!r}, which has an empty name; write the names with dots between them"
    return None


def read_keys(source: str, headers: bytes, body: bytes, paths: Iterable[str]) -> list[str | None]:
    """Return the ordering key of an event at each path. Never raises.

    A key is None if the payload cannot be decoded, or has neither a text nor a number there.
    """
    document = _document(source, headers, body)
    return [key_text(_find(document, path.split("."))) for path in paths]


def require_key(source: str, headers: bytes, body: bytes, path: str) -> bool:
    """Return whether a payload has a key at a path; True if it cannot be decoded.

    Raise PermanentError if the value there can be no key.
    """
    document = _document(source, headers, body)
    value = _find(document, path.split("."))
    if value is None:
        return document is None
    if key_text(value) is not None:
        return True
    raise PermanentError(
        f"ordering_key {path} is {_KINDS[type(value)]}; the path must lead to a text or a number"
    )


def key_text(value: object) -> str | None:
    """Return a value as the text of a key: 5 and "5" are the same one. None if it can be no key."""
    match value:
        case str():
            return _storable(value)
        case bool():
            return None
        case float() if not math.isfinite(value):
            return None
        case int() | float():
            return _storable(msgspec.json.encode(value).decode())
        case _:
            return None


def _storable(text: str) -> str:
    """Return a text, or its hash if it is too long or cannot be stored."""
    if not text or invalid_text_reason(text) is None:
        return text
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def _document(source: str, headers: bytes, body: bytes) -> Any:
    """Return the payload of an event as a handler without a model gets it; None if it gets none."""
    try:
        return decode_without_reason(
            body,
            enveloped=source == INGEST_SOURCE,
            content_type=_HEADERS.decode(headers).get("content-type", ""),
        )
    except (MalformedPayload, ValueError):
        return None


def _find(document: Any, path: Sequence[str]) -> Any:
    """Return the value at a path, or None."""
    for name in path:
        match document:
            case dict():
                document = document.get(name)
            case list() if name.isascii() and name.isdigit() and int(name) < len(document):
                document = document[int(name)]
            case _:
                return None
    return document
