"""Sinch puts the key's name before the signature."""

from __future__ import annotations

from typing import Final

from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.schemes import Hmac, Signature
from onceward.sources.schemes.algorithms import as_base64
from onceward.sources.schemes.times import DAY_SECONDS


class SinchSignature(Signature):
    """A signature in ``service KEY:SIGNATURE``; the part before the colon is ignored."""

    __slots__ = ()

    def put_signature(
        self, outgoing: OutgoingRequest, timestamp: str, signature: bytes, *others: str
    ) -> None:
        """Add the signature, after the name of a key."""
        super().put_signature(outgoing, timestamp, signature, "service onceward", *others)


SINCH: Final = SinchSignature(
    at="header:Authorization",
    separator=":",
    encoding="base64",
    timestamp="header:x-timestamp",
    time_format="iso",
    content="{method}\n{body:md5}\n{header:content-type}\nx-timestamp:{timestamp}\n{target}",
    algorithm=Hmac(secret_encoding=as_base64),
    tolerance_seconds=30 * DAY_SECONDS,
)
