"""Box may sign the body with non-ASCII characters escaped, and send it unescaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.request import Request
from onceward.sources.schemes import Key, Signature

MAX_ESCAPED_BODY_BYTES: Final = 65_536
"""Limits the work done for a request that is not verified yet."""
_UNPRINTABLE_OR_NON_ASCII: Final = re.compile(r"[^\x20-\x7e]")
_BACKSLASHES: Final = re.compile(r"\\(?!/)")
_SHORT_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


class BoxSignature(Signature):
    """A signature over the time and the body, as sent or with its non-ASCII characters escaped."""

    __slots__ = ()

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time. Raises SignatureRejected unless either form was signed."""
        try:
            return super().verify(keys, request, now)
        except SignatureRejected as rejected:
            is_small = len(request.body) <= MAX_ESCAPED_BODY_BYTES
            if rejected.cause is not RejectionCause.MISMATCH or not is_small:
                raise
        escaped_body = _escape_body(request.body)
        return super().verify(keys, Request(request.headers, escaped_body), now)


def _escape_body(body: bytes) -> bytes:
    text = _BACKSLASHES.sub(r"\\\\", body.decode(errors="replace"))
    return _UNPRINTABLE_OR_NON_ASCII.sub(lambda match: _escape_character(match[0]), text).encode()


def _escape_character(character: str) -> str:
    units = character.encode("utf-16-be", "replace")
    codes = [units[index : index + 2].hex() for index in range(0, len(units), 2)]
    return _SHORT_ESCAPES.get(character) or "".join(rf"\u{code}" for code in codes)


BOX: Final = BoxSignature(
    at="header:Box-Signature-Primary|header:Box-Signature-Secondary",
    encoding="base64",
    timestamp="header:Box-Delivery-Timestamp",
    time_format="iso",
    content="{body}{timestamp}",
    tolerance_seconds=600,
)
