"""Mercado Pago signs an id in the URL, the request id and a timestamp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import WrappedSignature
from onceward.sources.request import Request
from onceward.sources.schemes import Coverage, Key, Signature
from onceward.sources.schemes.scheme import mismatch_error, signing
from onceward.sources.selectors import FieldSelector

DATA_ID: Final = FieldSelector("query", "data.id")
REQUEST_ID: Final = "x-request-id"
_SIGNATURE: Final = Signature(
    at="header:x-signature",
    separator=",",
    prefix="v1=",
    timestamp="list:ts=",
    time_format="seconds_or_milliseconds",
    tolerance_seconds=900,
)


@dataclass(frozen=True, slots=True)
class MercadoPago(WrappedSignature):
    """A signature over the id in the URL, the request id and the time, as far as present."""

    signature: Signature = _SIGNATURE

    @property
    def needs_url(self) -> bool:
        """True: the signed id is in the query."""
        return True

    @property
    def separator_safety(self) -> str:
        """The semicolons after the values."""
        return "no value contains a semicolon"

    @property
    def coverage(self) -> Coverage:
        """The id in the URL, the request id and the time."""
        return Coverage(values=(str(DATA_ID), f"header:{REQUEST_ID}"), has_time=True)

    def event_content(self, event: Request) -> bytes:
        """Return the signed ids. The time may differ between deliveries of one request."""
        data_id = (DATA_ID.read(event) or b"").decode(errors="surrogatepass")
        return _signed_content(event, b"", data_id.lower())

    @property
    def summary(self) -> str:
        """A one-line description for people."""
        return "HMAC-SHA256 over ids and a timestamp, hex, in x-signature header"

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Add the signature to the request. Raises ConfigurationError."""
        if REQUEST_ID not in {name.lower() for name in outgoing.headers}:
            outgoing.put_header(REQUEST_ID, str(uuid4()))
        timestamp = self.signature.put_time(outgoing, now)
        with signing():
            content, _ = _candidate_contents(outgoing.request(), timestamp.encode())
        signature = self.signature.algorithm.signer(secret)(content)
        self.signature.put_signature(outgoing, timestamp, signature)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time. Raises SignatureRejected unless the ids and time were signed."""
        timestamp, at, signatures = self.signature.claims(request, now)
        for content in _candidate_contents(request, timestamp):
            if any(key.verifies(content, signatures) for key in keys):
                return at
        raise mismatch_error(len(keys))


def _candidate_contents(request: Request, timestamp: bytes) -> list[bytes]:
    """Return the content for the id as written, and in lower case as it used to be signed."""
    data_id = dict(request.query).get("data.id", "")
    return [_signed_content(request, timestamp, text) for text in (data_id, data_id.lower())]


def _signed_content(request: Request, timestamp: bytes, data_id: str) -> bytes:
    signed = {
        b"id": data_id.encode(errors="surrogatepass"),
        b"request-id": request.headers.get(REQUEST_ID.encode()) or b"",
        b"ts": timestamp,
    }
    if any(b";" in value for value in signed.values()):
        raise SignatureRejected("a signed id contains a semicolon", RejectionCause.MALFORMED)
    return b"".join([b"%b:%b;" % (name, value) for name, value in signed.items() if value])
