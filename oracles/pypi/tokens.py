"""JWTs, for senders whose documents say to verify them with any library for JWTs."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any

from oracles.verifier import Request

VALID_SECONDS = 300


def body_hash(request: Request) -> str:
    """The SHA-256 of the body, in hexadecimal digits."""
    return hashlib.sha256(request.body).hexdigest()


def body_hash_base64(request: Request) -> str:
    """The SHA-256 of the body, in base64."""
    return base64.b64encode(hashlib.sha256(request.body).digest()).decode()


def make_token(
    request: Request, secret: str, algorithm: str, body_claim: str, **claims: Any
) -> str:
    """A token that names the body, issued now."""
    import jwt

    now = int(time.time())
    times = {"iat": now, "exp": now + VALID_SECONDS}
    return jwt.encode({**times, body_claim: body_hash(request), **claims}, secret, algorithm)


def is_valid_token(
    token: str, secret: str, request: Request, algorithm: str, body_claim: str, **options: Any
) -> bool:
    """Whether a token is genuine, in its time, and names the body."""
    import jwt

    claims = jwt.decode(token, secret, algorithms=[algorithm], **options)
    return claims[body_claim] == body_hash(request)
