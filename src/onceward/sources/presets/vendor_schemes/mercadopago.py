"""Mercado Pago signs an id in the URL, the id of the request, and a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from onceward.errors import RejectionCause
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import VendorScheme, mismatch_error
from onceward.sources.request import Request
from onceward.sources.schemes import Hmac, Key, Signature

REQUEST_ID: Final = "x-request-id"
_SIGNATURE: Final = Signature(
    at="header:x-signature", separator=",", prefix="v1=", timestamp="list:ts="
)


@dataclass(frozen=True, slots=True)
class MercadoPago(VendorScheme):
    """The id in the URL, the id of the request, and a time; what is missing is left out."""

    at: str = "header:x-signature"

    @property
    def needs_url(self) -> bool:
        """The id is in it."""
        return True

    @property
    def covers_body(self) -> bool:
        """Nothing of the body is covered."""
        return False

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """What is checked, in its order."""
        return _SIGNATURE.causes

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return "HMAC-SHA256 over an id, the request's id and a time, hex, in x-signature header"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The secret. Raises ConfigurationError."""
        return Hmac().keys(secret)

    def sign(self, secret: str | bytes, draft: OutgoingRequest, now: float) -> None:
        """Put the signature into a draft. Raises ConfigurationError."""
        if REQUEST_ID not in {name.lower() for name in draft.headers}:
            draft.put_header(REQUEST_ID, str(uuid4()))
        timestamp = _SIGNATURE.put_time(draft, now)
        content, _ = _candidate_contents(draft.request(), timestamp.encode())
        _SIGNATURE.put_signature(draft, timestamp, Hmac().signer(secret)(content))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """The signed time; raises SignatureRejected unless these were signed."""
        timestamp, at, signatures = _SIGNATURE.claims(request, now)
        for content in _candidate_contents(request, timestamp):
            if any(key.verifies(content, signatures) for key in keys):
                return at
        raise mismatch_error(len(keys))


def _candidate_contents(request: Request, timestamp: bytes) -> list[bytes]:
    """The id as it is in the URL, and in lower case, as it used to be signed."""
    data_id = dict(request.query).get("data.id", "")
    return [_signed_content(request, timestamp, text) for text in (data_id, data_id.lower())]


def _signed_content(request: Request, timestamp: bytes, data_id: str) -> bytes:
    signed = {
        b"id": data_id.encode(errors="surrogatepass"),
        b"request-id": request.headers.get(REQUEST_ID.encode()) or b"",
        b"ts": timestamp,
    }
    return b"".join([b"%b:%b;" % (name, value) for name, value in signed.items() if value])
