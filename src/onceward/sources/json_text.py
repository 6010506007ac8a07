"""Decide what is JSON, by one rule for ids, filters, ordering keys and handlers.

Decoders stop where the interpreter does: at its recursion limit, which differs with its version and
with the calls under way, and at its limit of digits. A body that one process could read and another
could not would become two events, or pass a filter. So bytes are scanned first, for limits well
below those.
"""

from __future__ import annotations

from collections.abc import Iterator
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
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_BLOCK_BYTES: Final = 64 * 1024
_RUN: Final = MAX_LEVELS // 2
"""Brackets that are counted together: unless half of the levels are open, one count is enough."""
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
    levels = 0
    for brackets in _brackets(text):
        for start in range(0, len(brackets), _RUN):
            run = brackets[start : start + _RUN]
            opened = run.count(b"[") + run.count(b"{")
            if levels + opened > MAX_LEVELS:
                depths = accumulate(map(_STEPS.__getitem__, run), initial=levels)
                if max(depths) > MAX_LEVELS:
                    return True
            levels += 2 * opened - len(run)
    return False


def _brackets(text: bytes) -> Iterator[bytes]:
    """Yield the brackets that are not in strings, block by block.

    Two quotes side by side are an empty string, or end one string and begin the next.
    """
    structure = _without_escapes(text).translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    is_in_string = False
    for start in range(0, len(structure), _BLOCK_BYTES):
        parts = structure[start : start + _BLOCK_BYTES].split(b'"')
        yield b"".join(parts[is_in_string::2])
        is_in_string ^= len(parts) % 2 == 0


def _has_long_number(text: bytes) -> bool:
    if _LONG_NUMBER not in text.translate(_NUMBERS_AS_ZEROS):
        return False
    text = _without_escapes(text)
    runs = text.translate(_NUMBERS_AS_ZEROS)
    at = quotes = seen = 0
    while (at := runs.find(_LONG_NUMBER, at)) >= 0:
        quotes += text.count(b'"', seen, at)
        if quotes % 2 == 0:
            return True
        seen = at
        end = runs.find(b" ", at)
        at = len(runs) if end < 0 else end
    return False


def _without_escapes(text: bytes) -> bytes:
    """Return JSON without escaped quotes and backslashes, which occur in strings alone."""
    if b"\\" in text:
        return text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text
