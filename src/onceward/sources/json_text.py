"""What counts as JSON: one rule for ids, filters, ordering keys and handlers.

Decoders stop where the interpreter does: at its recursion limit, which differs with its version and
with the calls under way, and at its limit of digits. A body that one process could read and another
could not would become two events, or pass a filter. So bytes are scanned first, for limits well
below those.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import msgspec

MAX_LEVELS: Final = 500
"""Levels of objects and lists. The recursion limit is 1,000 or more."""
MAX_NUMBER_CHARACTERS: Final = 500
"""The length of a number. The limit of digits is 640 or more."""

TOO_DEEP: Final = f"nested more than {MAX_LEVELS} levels deep"
LONG_NUMBER: Final = f"a number of more than {MAX_NUMBER_CHARACTERS} characters"

_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _STEPS)
_NUMBERS_AS_ZEROS: Final = bytes(
    ord("0") if byte in b"0123456789+-.eE" else ord(" ") for byte in range(256)
)
_LONG_NUMBER: Final = b"0" * (MAX_NUMBER_CHARACTERS + 1)
_DECODER: Final = msgspec.json.Decoder()


def decode_json(text: bytes) -> Any:
    """Decode JSON in UTF-8 within the limits. Raise ValueError for anything else."""
    if limit := exceeded_limit(text):
        raise ValueError(limit)
    return _DECODER.decode(text)


def exceeded_limit(text: bytes) -> str | None:
    """Return the limit that JSON exceeds, or None."""
    if len(text) <= min(MAX_LEVELS, MAX_NUMBER_CHARACTERS):
        return None
    if is_too_deep(text):
        return TOO_DEEP
    return LONG_NUMBER if _has_long_number(text) else None


def is_too_deep(text: bytes) -> bool:
    """Return whether JSON has more levels than the limit."""
    if text.count(b"[") + text.count(b"{") <= MAX_LEVELS:
        return False
    brackets = _without_strings(text).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_LEVELS


def _has_long_number(text: bytes) -> bool:
    if _LONG_NUMBER not in text.translate(_NUMBERS_AS_ZEROS):
        return False
    return _LONG_NUMBER in _without_strings(text).translate(_NUMBERS_AS_ZEROS)


def _without_strings(text: bytes) -> bytes:
    """Return JSON with a space for each string. Within strings, backslashes escape quotes."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b" ".join(text.split(b'"')[::2])
