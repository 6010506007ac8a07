"""X signs its events and its challenge with the same secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from onceward.errors import RejectionCause, SignatureRejected
from onceward.sources.challenge import Challenge, ChallengeCredentials, Reply
from onceward.sources.presets.challenges import json_reply
from onceward.sources.presets.vendor_schemes.base import encode_base64
from onceward.sources.request import Request
from onceward.sources.schemes import Hmac, Key, Signature

_CRC_TOKEN: Final = re.compile(rb"[A-Za-z0-9+/=_-]{1,200}")


class XSignature(Signature):
    """A signature over the body. A body that could be a challenge token is rejected.

    Anyone can have a token signed by the challenge, with the secret that signs events.
    """

    __slots__ = ()

    def verify(self, keys: Sequence[Key], request: Request, now: float) -> float | None:
        """Return the signed time. Raises SignatureRejected, also for a challenge token."""
        signed_at = super().verify(keys, request, now)
        if _CRC_TOKEN.fullmatch(request.body):
            raise SignatureRejected(
                "the body is a challenge token, not an event", RejectionCause.MALFORMED
            )
        return signed_at


SIGNATURE: Final = XSignature(
    at="header:x-twitter-webhooks-signature", prefix="sha256=", encoding="base64"
)


def _crc_reply(request: Request, credentials: ChallengeCredentials) -> Reply | None:
    token = dict(request.query).get("crc_token", "").encode(errors="replace")
    if not credentials.secrets or not _CRC_TOKEN.fullmatch(token):
        return None
    digest = Hmac().signer(credentials.secrets[0])(token)
    return json_reply({"response_token": f"sha256={encode_base64(digest)}"})


CHALLENGE: Final = Challenge(unsigned=_crc_reply, methods=("GET",))
