"""What the schemes of single senders have in common."""

from __future__ import annotations

import base64
import binascii

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.request import Request, header_key


class VendorScheme:
    """What such a scheme says of itself, unless it says otherwise."""

    __slots__ = ()

    @property
    def tolerance_seconds(self) -> int | None:
        """No time is signed."""
        return None

    @property
    def needs_url(self) -> bool:
        """The public URL is not signed."""
        return False

    @property
    def covers_body(self) -> bool:
        """A body that was changed on its way is found out."""
        return True

    def signs_header(self, name: str) -> bool:  # noqa: ARG002 - of the protocol
        """No header is signed."""
        return False

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """What is checked, in its order."""
        return (RejectionCause.MISSING, RejectionCause.MALFORMED, RejectionCause.MISMATCH)


def decode_base64(text: bytes, location: str) -> bytes:
    """What a signature stands for. Raises SignatureRejected."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        message = f"the signature in the {location} is badly encoded"
        raise SignatureRejected(message, RejectionCause.MALFORMED) from None


def encode_base64(signature: bytes) -> str:
    """A signature as it is written."""
    return base64.b64encode(signature).decode()


def require_header(request: Request, name: str) -> bytes:
    """A header that must be there. Raises SignatureRejected."""
    value = request.headers.get(header_key(name))
    if value is None:
        raise SignatureRejected(f"no {name} header", RejectionCause.MISSING)
    return value


def mismatch_error(key_count: int) -> SignatureRejected:
    """None of the secrets made the signature."""
    return SignatureRejected(
        f"no signature matched any of {key_count} secrets", RejectionCause.MISMATCH
    )
