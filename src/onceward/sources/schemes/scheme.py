"""What every scheme can do, and the one way to have it done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.request import Request

MAX_SIGNATURES: Final = 10


class Key(Protocol):
    """A secret, or a public key, made ready to check with."""

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        """Whether one of the signatures was made over the content with this key."""


class Scheme(Protocol):
    """How a sender proves that a request is its own."""

    @property
    def at(self) -> str:
        """Where the proof is."""

    @property
    def tolerance_seconds(self) -> int | None:
        """How far off the signed time may be; None where no time is signed, or none is checked."""

    @property
    def needs_url(self) -> bool:
        """Whether the public URL is part of what is signed."""

    @property
    def covers_body(self) -> bool:
        """Whether a body that was changed on its way is found out."""

    def signs_header(self, name: str) -> bool:
        """Whether a header that was changed on its way is found out."""

    @property
    def summary(self) -> str:
        """What it is, in a line for people."""

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """What is checked, in its order."""

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """The keys that a configured secret stands for. Raises ConfigurationError."""

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Put into a outgoing what its sender would. Raises ConfigurationError.

        The secret is the one that both sides have, or the sender's private key.
        """

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time of a genuine request, or None where no time is signed.

        Raises SignatureRejected, whose `check` is for the operator and never holds a signature or
        a secret, RepeatedHeader for a deciding header that occurs twice, and nothing else.
        """


def require_match(keys: Sequence[Key], content: bytes, signatures: Sequence[bytes]) -> None:
    """Raise SignatureRejected unless one of the keys made one of the signatures."""
    for key in keys:
        if key.verifies(content, signatures):
            return
    raise SignatureRejected(
        f"no signature matched any of {len(keys)} secrets", RejectionCause.MISMATCH
    )
