"""Box may sign a body in another spelling than the one that it sends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.request import Request
from onceward.sources.schemes import Key, Signature

ESCAPED_MOST: Final = 65_536
"""Larger bodies are not spelt anew for a request that nobody has proved."""
_LETTERS: Final = re.compile(r"[^\x20-\x7e]")
_BACKSLASHES: Final = re.compile(r"\\(?!/)")
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


class Box(Signature):
    """The body, or the body with its letters beyond ASCII escaped as in JSON, and the time."""

    __slots__ = ()

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """The signed time; raises SignatureRejected unless one of the two was signed."""
        try:
            return super().verify(keys, request, now)
        except SignatureRejected as rejected:
            if rejected.cause is not RejectionCause.MISMATCH or len(request.body) > ESCAPED_MOST:
                raise
            escaped = _escaped(request.body)
        return super().verify(keys, Request(request.headers, escaped), now)


def _escaped(body: bytes) -> bytes:
    text = _BACKSLASHES.sub(r"\\\\", body.decode(errors="replace"))
    return _LETTERS.sub(lambda found: _escape(found[0]), text).encode()


def _escape(letter: str) -> str:
    units = letter.encode("utf-16-be", "replace")
    codes = [units[place : place + 2].hex() for place in range(0, len(units), 2)]
    return _SHORT.get(letter) or "".join(rf"\u{code}" for code in codes)


BOX: Final = Box(
    at="header:Box-Signature-Primary|header:Box-Signature-Secondary",
    encoding="base64",
    timestamp="header:Box-Delivery-Timestamp",
    time_format="iso",
    content="{body}{timestamp}",
    tolerance_seconds=600,
)
