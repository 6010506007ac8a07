"""X proves that a URL is ours by a digest with the secret that signs its events."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.challenge import Challenge, ChallengeCredentials, Reply
from onceward.sources.presets.challenges import JSON
from onceward.sources.request import Request
from onceward.sources.schemes import Hmac, Key, Signature

_TOKEN: Final = re.compile(rb"[A-Za-z0-9+/=_-]{1,200}")


class X(Signature):
    """The body. What anyone can have signed by asking is none."""

    __slots__ = ()

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Raise SignatureRejected unless the body was signed, and is not a question's token."""
        at = super().verify(keys, request, now)
        if _TOKEN.fullmatch(request.body):
            raise SignatureRejected(
                "the body is a token to be signed, not an event", RejectionCause.MALFORMED
            )
        return at


SIGNATURE: Final = X(at="header:x-twitter-webhooks-signature", prefix="sha256=", encoding="base64")


def _answer(request: Request, known: ChallengeCredentials) -> Reply | None:
    token = dict(request.query).get("crc_token", "").encode(errors="replace")
    if not known.secrets or not _TOKEN.fullmatch(token):
        return None
    digest = Hmac().signer(known.secrets[0])(token)
    answer = {"response_token": f"sha256={base64.b64encode(digest).decode()}"}
    return Reply(body=msgspec.json.encode(answer), content_type=JSON)


CHALLENGE: Final = Challenge(unsigned=_answer, methods=("GET",))
"""Anyone may ask, and has it signed: so what could be a token is no event."""
