"""PayPal signs two ids, a timestamp and a checksum of the body."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import (
    WrappedSignature,
    require_header,
)
from onceward.sources.request import Request
from onceward.sources.schemes import RSA_SHA256, BodyCoverage, Coverage, Key, Signature
from onceward.sources.schemes.labelled_keys import key_name
from onceward.sources.schemes.named_secrets import make_named_keys, split_named_secret
from onceward.sources.schemes.scheme import mismatch_error
from onceward.sources.schemes.times import DAY_SECONDS

KEY_FORMAT: Final = "WEBHOOK_ID:certificate"
TRANSMISSION_ID: Final = "PAYPAL-TRANSMISSION-ID"
TRANSMISSION_TIME: Final = "PAYPAL-TRANSMISSION-TIME"
_SIGNATURE: Final = Signature(
    at="header:PAYPAL-TRANSMISSION-SIG",
    encoding="base64",
    timestamp=f"header:{TRANSMISSION_TIME}",
    time_format="iso",
    tolerance_seconds=30 * DAY_SECONDS,
    algorithm=RSA_SHA256,
)


@dataclass(frozen=True, slots=True)
class PayPal(WrappedSignature):
    """A signature over ids and a checksum. The secret is ``WEBHOOK_ID:certificate``, in PEM."""

    signature: Signature = _SIGNATURE

    @property
    def coverage(self) -> Coverage:
        """The transmission's id and time, and a CRC-32 of the body."""
        values = tuple(f"header:{name.lower()}" for name in (TRANSMISSION_ID, TRANSMISSION_TIME))
        return Coverage(BodyCoverage.CHECKSUM, values=values, has_time=True)

    def event_content(self, event: Request) -> bytes:
        """Return the checksum of the body: all bodies that match it have one proof."""
        return _checksum(event)

    @property
    def separator_safety(self) -> str:
        """The transmission's id is before the last three values."""
        return "the last three values have fixed formats; the id is all that is before them"

    @property
    def summary(self) -> str:
        """A one-line description for people."""
        return (
            "RSA with SHA-256 over ids, a timestamp and a CRC-32 of the body, base64, in "
            "PAYPAL-TRANSMISSION-SIG header"
        )

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Return the certificate's key, named by the webhook id. Raises ConfigurationError."""
        return make_named_keys(secret, KEY_FORMAT, RSA_SHA256.keys)

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Add the signature to the request. Raises ConfigurationError."""
        webhook_id, private_key = split_named_secret(secret, KEY_FORMAT)
        if TRANSMISSION_ID.lower() not in {name.lower() for name in outgoing.headers}:
            outgoing.put_header(TRANSMISSION_ID, str(uuid4()))
        timestamp = self.signature.put_time(outgoing, now)
        content = _signed_content(outgoing.request(), timestamp.encode(), webhook_id)
        self.signature.put_signature(outgoing, timestamp, RSA_SHA256.signer(private_key)(content))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time. Raises SignatureRejected unless one of the keys signed."""
        timestamp, signed_at, signatures = self.signature.claims(request, now)
        for key in keys:
            content = _signed_content(request, timestamp, key_name(key))
            if key.verifies(content, signatures):
                return signed_at
        raise mismatch_error(len(keys))


def _signed_content(request: Request, timestamp: bytes, webhook_id: str) -> bytes:
    transmission_id = require_header(request, TRANSMISSION_ID)
    return b"|".join([transmission_id, timestamp, webhook_id.encode(), _checksum(request)])


def _checksum(request: Request) -> bytes:
    return str(binascii.crc32(request.body)).encode()
