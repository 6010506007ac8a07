"""The interface of all schemes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.request import Request
from onceward.sources.schemes.coverage import Coverage

MAX_SIGNATURES: Final = 10

Signer = Callable[[bytes], bytes]
"""Returns the signature over a content."""


class Key(Protocol):
    """A parsed secret or public key."""

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:
        """Return whether the key made one of the signatures over the content."""


class Scheme(Protocol):
    """A method by which a sender proves that a request is its own."""

    @property
    def at(self) -> str:
        """The selectors of the signature or token, separated by ``|``.

        If all are headers, a request with none of them is refused before its body is read.
        """

    @property
    def tolerance_seconds(self) -> int | None:
        """How far the signed time may be off; None if no time is checked."""

    @property
    def needs_url(self) -> bool:
        """Whether verification needs the public URL."""

    def signed_query(self, registered: str, sent: str) -> str:
        """Return the query of the URL to verify, for a source with a configured URL.

        A sender that signs the URL signs the registered one: what a request has in its query must
        not decide what was signed. Others put values into the query, which is taken as sent.
        """

    @property
    def coverage(self) -> Coverage:
        """The parts of a request that the proof covers."""

    def event_content(self, event: Request) -> bytes:
        """Return what the proof covers of a verified event, except the time of the delivery.

        It is the body, unless the proof covers only values of a request: then those values, so
        that all requests with one proof have the same hash.
        """

    @property
    def separator_safety(self) -> str:
        """Why the covered values cannot be cut elsewhere, if several are joined."""

    def with_tolerance(self, seconds: int | None) -> Scheme:
        """Return the scheme with another tolerance of the signed time; None checks none.

        A scheme that covers no time is returned unchanged.
        """

    @property
    def summary(self) -> str:
        """A one-line description."""

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The possible causes of a rejection, in the order of the checks."""

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Parse a configured secret into keys. Raises ConfigurationError."""

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:
        """Sign a request as the sender would. Raises ConfigurationError.

        The secret is the shared secret or the sender's private key.
        """

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Verify a request and return its signed time, or None if no time is signed.

        Raises SignatureRejected if the request does not verify, RepeatedHeader if a header of the
        proof occurs twice, and nothing else. `SignatureRejected.check` is for operators and never
        contains a signature or a secret.
        """


@contextmanager
def signing() -> Iterator[None]:
    """Raise ConfigurationError for a request that would be rejected, however it is signed."""
    try:
        yield
    except SignatureRejected as rejected:
        raise ConfigurationError(f"the request cannot be signed: {rejected.check}") from None


def require_match(keys: Sequence[Key], content: bytes, signatures: Sequence[bytes]) -> None:
    """Raise SignatureRejected unless one of the keys made one of the signatures."""
    for key in keys:
        if key.verifies(content, signatures):
            return
    raise mismatch_error(len(keys))


def mismatch_error(key_count: int) -> SignatureRejected:
    """Return the error for a signature that no key verifies."""
    secrets = "the secret" if key_count == 1 else f"any of {key_count} secrets"
    return SignatureRejected(f"no signature matched {secrets}", RejectionCause.MISMATCH)
