"""The kind of body that a provider sends.

Many providers sign more than webhooks with one secret: redirect URLs, login tokens, challenge
answers. Such a text has a valid signature, and is rejected because no event looks like it.
"""

from __future__ import annotations

from enum import Enum

from onceward.sources.schemes.encodings import decode_base64


class BodyKind(Enum):
    """A kind of body, recognised without parsing: bad JSON of the provider is still an event."""

    JSON_OBJECT = "a JSON object"
    BASE64_XML = "XML in base64"

    def fits(self, body: bytes) -> bool:
        """Return whether a body can be of this kind."""
        if self is BodyKind.JSON_OBJECT:
            return body.startswith(b"{") and body.rstrip(b" \t\r\n").endswith(b"}")
        decoded = decode_base64(body.replace(b"\n", b"")) or b""
        return decoded.lstrip().startswith(b"<")
