"""PayPal signs ids, a time and a checksum of the body."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from onceward.errors import RejectionCause
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import (
    VendorScheme,
    mismatch_error,
    require_header,
)
from onceward.sources.request import Request
from onceward.sources.schemes import RSA_SHA256, Key, Signature
from onceward.sources.schemes.named_secrets import key_name, make_named_keys, split_named_secret

KEY_FORMAT: Final = "WEBHOOK_ID:certificate"
TRANSMISSION_ID: Final = "PAYPAL-TRANSMISSION-ID"
_SIGNATURE: Final = Signature(
    at="header:PAYPAL-TRANSMISSION-SIG",
    encoding="base64",
    timestamp="header:PAYPAL-TRANSMISSION-TIME",
    time_format="iso",
    algorithm=RSA_SHA256,
)


@dataclass(frozen=True, slots=True)
class PayPal(VendorScheme):
    """The secret is ``WEBHOOK_ID:`` and PayPal's certificate, in PEM."""

    at: str = _SIGNATURE.at

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """What is checked, in its order."""
        return _SIGNATURE.causes

    @property
    def covers_body(self) -> bool:
        """A checksum is signed, which anyone can bend a body to."""
        return False

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return (
            "RSA with SHA-256 over ids, a time and a checksum of the body, base64, in "
            "PAYPAL-TRANSMISSION-SIG header"
        )

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The certificate's key, for one webhook. Raises ConfigurationError."""
        return make_named_keys(secret, KEY_FORMAT, RSA_SHA256.keys)

    def sign(self, secret: str | bytes, draft: OutgoingRequest, now: float) -> None:
        """Put the signature into a draft. Raises ConfigurationError."""
        webhook_id, private_key = split_named_secret(secret, KEY_FORMAT)
        if TRANSMISSION_ID.lower() not in {name.lower() for name in draft.headers}:
            draft.put_header(TRANSMISSION_ID, str(uuid4()))
        timestamp = _SIGNATURE.put_time(draft, now)
        content = _signed_content(draft.request(), timestamp.encode(), webhook_id)
        _SIGNATURE.put_signature(draft, timestamp, RSA_SHA256.signer(private_key)(content))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """The signed time; raises SignatureRejected unless these were signed."""
        timestamp, at, signatures = _SIGNATURE.claims(request, now)
        for key in keys:
            content = _signed_content(request, timestamp, key_name(key))
            if key.verifies(content, signatures):
                return at
        raise mismatch_error(len(keys))


def _signed_content(request: Request, timestamp: bytes, webhook_id: str) -> bytes:
    transmission_id = require_header(request, TRANSMISSION_ID)
    checksum = str(binascii.crc32(request.body)).encode()
    return b"|".join([transmission_id, timestamp, webhook_id.encode(), checksum])
