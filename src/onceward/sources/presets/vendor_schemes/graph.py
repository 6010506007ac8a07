"""Microsoft Graph sends a text of yours along with each notification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets.vendor_schemes.base import VendorScheme
from onceward.sources.request import Request
from onceward.sources.schemes import Key, Token
from onceward.sources.schemes.algorithms import secret_bytes


@dataclass(frozen=True, slots=True)
class ClientState(VendorScheme):
    """A secret text in each of the notifications of a body."""

    at: str = "json:value"

    @property
    def covers_body(self) -> bool:
        """Nothing is covered."""
        return False

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """What is checked, in its order."""
        return (RejectionCause.MISSING, RejectionCause.MISMATCH)

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""
        return "a token in each notification"

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The client state. Raises ConfigurationError."""
        return Token(at="json:clientState").keys(secret)

    def sign(self, secret: str | bytes, draft: OutgoingRequest, now: float) -> None:  # noqa: ARG002
        """Put the client state into each notification. Raises ConfigurationError."""
        document = draft.document()
        try:
            for notification in _notifications(document):
                notification["clientState"] = secret_bytes(secret).decode("latin-1")
        except (SignatureRejected, TypeError):
            raise ConfigurationError("the body has no notifications at json:value[]") from None
        draft.body = msgspec.json.encode(document)

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> None:  # noqa: ARG002
        """Raise SignatureRejected unless every notification has it."""
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
