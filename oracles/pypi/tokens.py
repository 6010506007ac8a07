"""JWTs, for providers that recommend any JWT library."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any

from oracles.verifier import Request

VALID_SECONDS = 300


def body_hash(request: Request) -> str:
    """Return the SHA-256 of the body in hex."""
    return hashlib.sha256(request.body).hexdigest()


def body_hash_base64(request: Request) -> str:
    """Return the SHA-256 of the body in base64."""
    return base64.b64encode(hashlib.sha256(request.body).digest()).decode()


def make_token(
    request: Request, secret: str, algorithm: str, body_claim: str, **claims: Any
) -> str:
    """Return a token with the body's hash, issued now."""
    import jwt

    now = int(time.time())
    times = {"iat": now, "exp": now + VALID_SECONDS}
    return jwt.encode({**times, body_claim: body_hash(request), **claims}, secret, algorithm)


def is_valid_token(
    token: str, secret: str, request: Request, algorithm: str, body_claim: str, **options: Any
) -> bool:
    """Return whether a token is valid now and has the body's hash."""
    import jwt

    claims = jwt.decode(token, secret, algorithms=[algorithm], **options)
    return claims[body_claim] == body_hash(request)
