"""What senders ask before they send, and the answers that they insist on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from onceward.sources.request import Request

TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not a receipt."""

    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    provisioned_secret: bytes | None = field(default=None, repr=False)
    """A secret that the sender handed over: it must be kept before this is sent."""


@dataclass(frozen=True, slots=True)
class ChallengeCredentials:
    """What a source has to answer with."""

    secrets: Sequence[bytes] = field(repr=False)
    verify_token: bytes | None = field(default=None, repr=False)


ChallengeHandler = Callable[[Request, ChallengeCredentials], Reply | None]
"""The answer to a request that asks for one; None for all others."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """What is answered: before a request is verified, and when it was."""

    unsigned: ChallengeHandler | None = None
    methods: tuple[str, ...] = ()
    """On which methods the unsigned ones come."""
    signed: ChallengeHandler | None = None
    provisions_secret: bool = False
    """Whether the sender hands over the secret."""

    def answer_unsigned(self, request: Request, credentials: ChallengeCredentials) -> Reply | None:
        """The answer to a request that nobody has verified yet, if it asks for one."""
        if self.unsigned is None or request.method not in self.methods:
            return None
        return self.unsigned(request, credentials)

    def answer_signed(self, request: Request, credentials: ChallengeCredentials) -> Reply | None:
        """The answer to a genuine request, if it asks for one."""
        return None if self.signed is None else self.signed(request, credentials)


def can_provision_secret(challenge: Challenge | None, verify_token: str | bytes | None) -> bool:
    """Whether a sender may hand over its secret: only with a token of the operator's own."""
    return challenge is not None and challenge.provisions_secret and verify_token is not None
