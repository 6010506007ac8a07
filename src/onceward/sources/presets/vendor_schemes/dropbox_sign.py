"""Dropbox Sign sends a form field of JSON that contains its own signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import WrappedSignature
from onceward.sources.request import Request
from onceward.sources.schemes import Coverage, Key, Signature
from onceward.sources.schemes.times import DAY_SECONDS
from onceward.sources.selectors import FieldSelector, parse_selector

JSON_FIELD: Final = FieldSelector("form", "json")
_SIGNATURE: Final = Signature(
    at="json:event.event_hash",
    timestamp="json:event.event_time",
    content="{timestamp}{json:event.event_type}",
    tolerance_seconds=30 * DAY_SECONDS,
)
_SIGNED_VALUES: Final = (
    parse_selector("json:event.event_time"),
    parse_selector("json:event.event_type"),
)


@dataclass(frozen=True, slots=True)
class DropboxSign(WrappedSignature):
    """A signature in the JSON of a form field, over the event's time and type."""

    signature: Signature = _SIGNATURE

    @property
    def at(self) -> str:
        """The form field with the JSON."""
        return str(JSON_FIELD)

    @property
    def coverage(self) -> Coverage:
        """The event's time and type."""
        return self.signature.coverage

    def event_content(self, event: Request) -> bytes:
        """Return the event's time and type."""
        return b"".join([selector.read(event) or b"" for selector in _SIGNED_VALUES])

    @property
    def separator_safety(self) -> str:
        """The boundary between the time and the type."""
        return self.signature.separator_safety

    @property
    def summary(self) -> str:
        """A one-line description for people."""
        return f"{self.signature.summary}, of form:json"

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Add the signature to the JSON. Raises ConfigurationError."""
        inner = OutgoingRequest({}, JSON_FIELD.read(outgoing.request()) or b"")
        self.signature.sign(secret, inner, now)
        outgoing.put(JSON_FIELD, inner.body.decode())

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time. Raises SignatureRejected unless the time and type were signed."""
        field = JSON_FIELD.read(request)
        if field is None:
            raise SignatureRejected(f"no {JSON_FIELD}", RejectionCause.MISSING)
        return self.signature.verify(keys, Request(request.headers, field), now)
