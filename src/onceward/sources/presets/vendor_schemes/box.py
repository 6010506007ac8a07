"""Box may sign the body with non-ASCII characters escaped, and send it unescaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.request import Request
from onceward.sources.schemes import Key, Signature

MAX_ESCAPED_BODY_BYTES: Final = 65_536
"""Limits the work done for a request that is not verified yet."""
_encode_json_string: Final = json.encoder.encode_basestring_ascii


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
            if escaped_body is None:
                raise
        return super().verify(keys, Request(request.headers, escaped_body), now)


def _escape_body(body: bytes) -> bytes | None:
    """Return a body as Box escapes it; None if it is not UTF-8 or has characters JSON forbids.

    All but printable ASCII is escaped as in a JSON string, and so are backslashes that are not
    before a slash. Quotes are not.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    if "\b" in text or "\f" in text:  # Box escapes them in another way
        return None
    escaped = '"'.join([_encode_json_string(piece)[1:-1] for piece in text.split('"')])
    return escaped.replace(r"\\/", r"\/").encode()


BOX: Final = BoxSignature(
    at="header:Box-Signature-Primary|header:Box-Signature-Secondary",
    encoding="base64",
    timestamp="header:Box-Delivery-Timestamp",
    time_format="iso",
    content="{body}{timestamp}",
    tolerance_seconds=600,
)
