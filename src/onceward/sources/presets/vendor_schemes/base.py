"""Defaults and helpers that vendor schemes share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.request import Request, header_key
from onceward.sources.schemes import Key, Signature
from onceward.sources.schemes.encodings import decode_base64


class VendorScheme:
    """The default properties of a scheme; subclasses override what differs."""

    __slots__ = ()

    @property
    def tolerance_seconds(self) -> int | None:
        """None: no timestamp is checked."""
        return None

    def with_tolerance(self, seconds: int | None) -> Self:  # noqa: ARG002 - required by Scheme
        """Return the scheme unchanged: no timestamp is checked."""
        return self

    @property
    def separator_safety(self) -> str:
        """One value is signed."""
        return "one value is signed"

    @property
    def needs_url(self) -> bool:
        """False: the public URL is not signed."""
        return False

    def signed_query(self, registered: str, sent: str) -> str:  # noqa: ARG002 - required by Scheme
        """Return the query as sent."""
        return sent

    def event_content(self, event: Request) -> bytes:
        """Return the body."""
        return event.body

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The causes of rejection, in the order of the checks."""
        return (RejectionCause.MISSING, RejectionCause.MALFORMED, RejectionCause.MISMATCH)


@dataclass(frozen=True, slots=True)
class WrappedSignature(VendorScheme):
    """A scheme that finds the signature and the time as a `Signature` does, over other content."""

    signature: Signature

    @property
    def at(self) -> str:
        """The selector of the signature."""
        return self.signature.at

    @property
    def tolerance_seconds(self) -> int | None:
        """The tolerance of the signed time."""
        return self.signature.tolerance_seconds

    def with_tolerance(self, seconds: int | None) -> Self:
        """Return the scheme with another tolerance of the signed time; None checks none."""
        return replace(self, signature=self.signature.with_tolerance(seconds))

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The causes of rejection, in the order of the checks."""
        return self.signature.causes

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Parse a configured secret into keys. Raises ConfigurationError."""
        return self.signature.keys(secret)


def decode_signature(text: bytes, location: str) -> bytes:
    """Decode a signature in base64, found in `location`. Raises SignatureRejected."""
    signature = decode_base64(text)
    if signature is None:
        raise SignatureRejected(
            f"the signature in the {location} is not valid base64", RejectionCause.MALFORMED
        )
    return signature


def require_header(request: Request, name: str) -> bytes:
    """Return a header's value. Raises SignatureRejected when it is missing."""
    value = request.headers.get(header_key(name))
    if value is None:
        raise SignatureRejected(f"no {name} header", RejectionCause.MISSING)
    return value
