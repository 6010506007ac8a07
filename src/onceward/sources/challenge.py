"""Challenges: requests that expect a specific reply instead of a receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from onceward.sources.request import Request

TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response other than a receipt."""

    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    provisioned_secret: bytes | None = field(default=None, repr=False)
    """A secret that the sender provisioned. It must be durable before the reply is sent."""


@dataclass(frozen=True, slots=True)
class ChallengeCredentials:
    """The secrets with which a source answers challenges."""

    secrets: Sequence[bytes] = field(repr=False)
    verify_token: bytes | None = field(default=None, repr=False)


ChallengeHandler = Callable[[Request, ChallengeCredentials], Reply | None]
"""Returns the reply to a challenge, or None if the request is not a challenge."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """How a sender's challenges are answered, before and after verification."""

    unsigned: ChallengeHandler | None = None
    methods: tuple[str, ...] = ()
    """The HTTP methods of unsigned challenges."""
    signed: ChallengeHandler | None = None
    provisions_secret: bool = False
    """Whether an unsigned challenge provisions a secret."""

    def answers(self, method: str) -> bool:
        """Return whether an unverified request with this method may be a challenge."""
        return self.unsigned is not None and method in self.methods

    def answer_unsigned(self, request: Request, credentials: ChallengeCredentials) -> Reply | None:
        """Return the reply to an unverified request, or None if it is not a challenge."""
        if self.unsigned is None or not self.answers(request.method):
            return None
        return self.unsigned(request, credentials)

    def answer_signed(self, request: Request, credentials: ChallengeCredentials) -> Reply | None:
        """Return the reply to a verified request, or None if it is not a challenge."""
        return None if self.signed is None else self.signed(request, credentials)


def can_provision_secret(challenge: Challenge | None, verify_token: str | bytes | None) -> bool:
    """Return whether a sender may provision its secret. Only an operator's token allows it."""
    return challenge is not None and challenge.provisions_secret and verify_token is not None
