"""Ordering keys: the value in a payload that orders the jobs of a handler."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from onceward.errors import MalformedPayload, PermanentError
from onceward.model.events import INGEST_SOURCE, invalid_text_reason
from onceward.work.payload import content_type_of, decode_without_reason
from onceward.work.payload_paths import find_value, wrong_kind


def read_keys(source: str, headers: bytes, body: bytes, paths: Iterable[str]) -> list[str | None]:
    """Return the ordering key of an event at each path. Never raises.

    A key is None if the payload cannot be decoded, or has neither a text nor a number there.
    """
    document = _document(source, headers, body)
    return [key_text(find_value(document, path.split("."))) for path in paths]


def require_key(source: str, headers: bytes, body: bytes, path: str) -> bool:
    """Return whether a payload has a key at a path; True if it cannot be decoded.

    Raise PermanentError if the value there can be no key.
    """
    document = _document(source, headers, body)
    value = find_value(document, path.split("."))
    if value is None:
        return document is None
    if key_text(value) is not None:
        return True
    raise PermanentError(wrong_kind("ordering_key", path, value))


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
            content_type=content_type_of(headers),
        )
    except (MalformedPayload, ValueError):
        return None
