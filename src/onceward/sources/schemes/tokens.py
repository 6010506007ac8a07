"""Tokens: they authenticate the sender, but not the content of a request."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from onceward.errors import ConfigurationError, RejectionCause, SignatureRejected
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.request import Request
from onceward.sources.schemes.algorithms import shared_secret_bytes
from onceward.sources.schemes.coverage import Coverage
from onceward.sources.schemes.scheme import Key
from onceward.sources.selectors import Selector, parse_selectors, read_first


class _TokenKey:
    __slots__ = ("_token",)

    def __init__(self, token: bytes) -> None:
        self._token = token

    def verifies(self, content: bytes, signatures: Sequence[bytes]) -> bool:  # noqa: ARG002 - part of the protocol
        return any(hmac.compare_digest(self._token, token) for token in signatures)


@dataclass(frozen=True, slots=True)
class Token:
    """A secret token in the request, after a prefix such as ``Bearer ``.

    With ``is_basic`` it is HTTP basic authentication, and the secret is ``user:password``.
    """

    at: str
    prefix: str = ""
    is_basic: bool = False
    _selectors: tuple[Selector, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_selectors", parse_selectors(self.at))

    @property
    def tolerance_seconds(self) -> None:
        """None: no time is signed."""

    def with_tolerance(self, seconds: int | None) -> Self:  # noqa: ARG002 - part of the protocol
        """Return the scheme unchanged: no time is signed."""
        return self

    @property
    def separator_safety(self) -> str:
        """Nothing is signed."""
        return "nothing is joined"

    @property
    def needs_url(self) -> bool:
        """Whether the token is in the URL."""
        return "query:" in self.at

    def signed_query(self, registered: str, sent: str) -> str:  # noqa: ARG002 - part of the protocol
        """Return the query as sent."""
        return sent

    @property
    def coverage(self) -> Coverage:
        """Nothing: a token shows only who sends."""
        return Coverage()

    def event_content(self, event: Request) -> bytes:
        """Return the body."""
        return event.body

    @property
    def summary(self) -> str:
        """A one-line description."""
        return f"{'user and password' if self.is_basic else 'a token'} in {self._selectors[0]}"

    @property
    def causes(self) -> tuple[RejectionCause, ...]:
        """The possible causes of a rejection, in the order of the checks."""
        return (RejectionCause.MISSING, RejectionCause.MISMATCH)

    def keys(self, secret: str | bytes) -> tuple[Key, ...]:
        """Parse a configured token into a key. Raises ConfigurationError."""
        return (_TokenKey(self._token(secret)),)

    def sign(self, secret: str | bytes, outgoing: OutgoingRequest, now: float) -> None:  # noqa: ARG002 - part of the protocol
        """Write the token to a request. Raises ConfigurationError."""
        outgoing.put(self._selectors[0], (self._prefix + self._token(secret)).decode("latin-1"))

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:  # noqa: ARG002 - part of the protocol
        """Verify the token of a request. Raises SignatureRejected."""
        value = read_first(self._selectors, request)
        prefix = self._prefix
        if value is None:
            raise SignatureRejected(f"no {self._selectors[0]}", RejectionCause.MISSING)
        if value[: len(prefix)].lower() != prefix.lower():
            raise SignatureRejected(
                f"no {self._prefix.decode()}<token> in the {self._selectors[0]}",
                RejectionCause.MISSING,
            )
        for key in keys:
            if key.verifies(b"", (value[len(prefix) :],)):
                return None
        raise SignatureRejected(
            f"the token matches none of {len(keys)} secrets", RejectionCause.MISMATCH
        )

    def _token(self, secret: str | bytes) -> bytes:
        token = shared_secret_bytes(secret)
        if self.is_basic and not all(token.partition(b":")):
            raise ConfigurationError("is not user:password")
        return base64.b64encode(token) if self.is_basic else token

    @property
    def _prefix(self) -> bytes:
        return b"Basic " if self.is_basic else self.prefix.encode()
