"""Ordering keys: the value in a payload that orders the jobs of a handler."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from onceward.errors import PermanentError
from onceward.model.events import storable_key
from onceward.work.definition.payload_paths import find_value, wrong_kind
from onceward.work.payloads.payload import UNDECODABLE, read_document


def read_keys(source: str, headers: bytes, body: bytes, paths: Iterable[str]) -> list[str | None]:
    """Return the ordering key of an event at each path. Never raises."""
    return keys_in(read_document(source, headers, body), paths)


def keys_in(document: Any, paths: Iterable[str]) -> list[str | None]:
    """Return the ordering key in a payload at each path. Never raises.

    A key is None if the payload cannot be decoded, or has neither a text nor a number there.
    """
    return [key_text(find_value(document, path.split("."))) for path in paths]


def require_key(source: str, headers: bytes, body: bytes, path: str) -> bool:
    """Return whether a payload has a key at a path; True if it cannot be decoded.

    Raise PermanentError if the value there can be no key.
    """
    document = read_document(source, headers, body)
    value = find_value(document, path.split("."))
    if value is None:
        return document is None or document is UNDECODABLE
    if key_text(value) is not None:
        return True
    raise PermanentError(wrong_kind("ordering_key", path, value))


def key_text(value: object) -> str | None:
    """Return a value as the text of a key: 5 and "5" are the same one. None if it can be no key."""
    match value:
        case str():
            return storable_key(value)
        case bool():
            return None
        case float() if not math.isfinite(value):
            return None
        case int() | float():
            return storable_key(msgspec.json.encode(value).decode())
        case _:
            return None
