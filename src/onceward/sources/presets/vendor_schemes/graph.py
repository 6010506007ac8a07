"""Microsoft Graph repeats a secret of yours in each notification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import VendorScheme
from onceward.sources.request import Request
from onceward.sources.schemes import Coverage, Key, Token
from onceward.sources.schemes.algorithms import secret_bytes


@dataclass(frozen=True, slots=True)
class ClientState(VendorScheme):
    """A secret, the ``clientState``, in each notification of a body."""

    at: str = "json:value"

    @property
    def separator_safety(self) -> str:
        """Nothing is signed."""
        return "nothing is joined"

    @property
    def coverage(self) -> Coverage:
        """Nothing: a client state shows only who sends."""
        return Coverage()

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The causes of rejection, in the order of the checks."""
        return (RejectionCause.MISSING, RejectionCause.MISMATCH)

    @property
    def summary(self) -> str:
        """A one-line description for people."""
        return "a token in each notification (clientState)"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Return the key for a client state. Raises ConfigurationError."""
        return Token(at="json:clientState").keys(secret)

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:  # noqa: ARG002
        """Add the client state to each notification. Raises ConfigurationError."""
        document = outgoing.document()
        try:
            for notification in _notifications(document):
                notification["clientState"] = secret_bytes(secret).decode("latin-1")
        except (SignatureRejected, TypeError):
            raise ConfigurationError("the body has no notifications at json:value[]") from None
        outgoing.body = msgspec.json.encode(document)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless every notification has the client state."""
        for notification in _notifications(request.document):
            state = notification.get("clientState") if isinstance(notification, dict) else None
            sent = state.encode(errors="surrogatepass") if isinstance(state, str) else b""
            if not any(key.verifies(b"", (sent,)) for key in keys):
                raise SignatureRejected(
                    "a notification has another clientState", RejectionCause.MISMATCH
                )


def _notifications(document: Any) -> Iterator[Any]:
    notifications = document.get("value") if isinstance(document, dict) else None
    if not isinstance(notifications, list) or not notifications:
        raise SignatureRejected("no notifications in the body", RejectionCause.MISSING)
    yield from notifications
