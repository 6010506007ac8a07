"""Authentication: who may use the endpoints that need an admin token."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

from onceward.errors import ConfigurationError, RejectionCause
from onceward.http.errors import AuthenticationFailed, HttpError
from onceward.http.hosts import check_host_and_origin, host_check
from onceward.http.proxies import TRUST_ADVICE, Proxies, is_forwarded
from onceward.http.responses import Scope
from onceward.http.throttle import Throttle
from onceward.sources.request import Headers

TOKENS_VARIABLE: Final = "ONCEWARD_ADMIN_TOKENS"
MIN_TOKEN_LENGTH: Final = 16
DEV_NAME: Final = "dev"
"""The token holder's name under ``--dev``, where no token is required."""

_UNAUTHORIZED: Final = (
    "Send a valid admin token: Authorization: Bearer <token>, without the name before it."
)
_BLOCKED: Final = (
    "Too many wrong admin tokens came from this address. Retry in {} s; until then, a correct "
    "token is refused too."
)
_REPEATED: Final = "This admin token was wrong before. Correct it, then retry in {} s."
_NOBODY_AUTHORIZED: Final = (
    f"No admin token is set. Set {TOKENS_VARIABLE}=name:token, or run `onceward serve app.py` "
    "once, which creates a token; then restart this app."
)
"""Only a mounted app has no token: it creates none."""


def parse_tokens(text: str) -> dict[str, bytes]:
    """Return the token hashes of ``name:token,name:token``, by name.

    Raises ConfigurationError. Its message never quotes an entry: name and token may be swapped.
    """
    hashes: dict[str, bytes] = {}
    faults = []
    for position, part in enumerate(filter(None, map(str.strip, text.split(","))), start=1):
        name, _, token = (piece.strip() for piece in part.partition(":"))
        if not name or not token:
            faults.append(f"{TOKENS_VARIABLE}: entry {position} must be name:token")
        elif name in hashes:
            faults.append(f"{TOKENS_VARIABLE}: entry {position} repeats a name; use one each")
        elif len(token) < MIN_TOKEN_LENGTH:
            faults.append(
                f"{TOKENS_VARIABLE}: the token of entry {position} needs at least "
                f"{MIN_TOKEN_LENGTH} characters"
            )
        else:
            hashes[name] = token_hash(token.encode(errors="surrogateescape"))
    if faults:
        raise ConfigurationError(faults)
    return hashes


def token_hash(token: bytes) -> bytes:
    """Return the SHA-256 of a token, the only form in which it is stored."""
    return hashlib.sha256(token).digest()


CountFailure = Callable[[RejectionCause, str], None]
"""Counts a request without a valid token, by cause and reason."""


class Authenticator:
    """Checks who sends a request. With `dev`, every client on this machine is authenticated."""

    def __init__(
        self,
        *,
        tokens: Mapping[str, bytes],
        throttle: Throttle,
        proxies: Proxies,
        count_failure: CountFailure,
        allowed_hosts: Collection[str] = (),
        dev: bool = False,
    ) -> None:
        self._tokens = dict(tokens)
        self._throttle = throttle
        self._proxies = proxies
        self._count_failure = count_failure
        self._dev = dev
        self._check_host = host_check(allowed_hosts)
        self._check_loopback = host_check(())

    def authenticate(self, scope: Scope, headers: Headers) -> str:
        """Return the name of the token holder. Raises HttpError (401, 429; under ``--dev`` 403)."""
        if self._dev:
            if is_forwarded(headers):
                message = "--dev serves this machine only; connect without a proxy."
                raise HttpError(403, "forwarded", message)
            check_host_and_origin(headers, self._check_loopback)
            return DEV_NAME
        if self._throttle.is_active:
            self._refuse_blocked(scope, headers)
        authorization = headers.get(b"authorization") or b""
        kind, _, token = authorization.partition(b" ")
        digest = token_hash(token.strip())
        name = None
        for holder, expected in self._tokens.items():
            if hmac.compare_digest(expected, digest):
                name = holder
        if name is None or kind.lower() != b"bearer":
            raise self._failure(scope, headers, authorization if token.strip() else b"")
        return name

    def check_host_and_origin(self, headers: Headers) -> None:
        """Reject requests from pages of other sites. Raises HttpError (403)."""
        check_host_and_origin(headers, self._check_host)

    # Failures.

    def _refuse_blocked(self, scope: Scope, headers: Headers) -> None:
        """Refuse a client that guesses tokens, without a look at its token. Raises HttpError."""
        client = self._proxies.client(scope, headers)
        if seconds := self._throttle.remaining_seconds(client):
            self._count_failure(RejectionCause.MISMATCH, "refused after wrong admin tokens")
            count = self._throttle.failures(client)
            reason = f"refused {_name(client)} after {count} wrong admin tokens"
            reason += self._proxy_advice(scope, headers)
            raise _too_many(_BLOCKED, seconds, reason)

    def _failure(
        self, scope: Scope, headers: Headers, authorization: bytes
    ) -> AuthenticationFailed:
        """Count a request without a valid token, and return the error for it."""
        client = self._proxies.client(scope, headers)
        if not self._tokens:
            return _unauthorized(_NOBODY_AUTHORIZED, _NOBODY_AUTHORIZED)
        if not authorization:  # it proves nothing, but it is no guess
            self._count_failure(RejectionCause.MISSING, "no admin token")
            return _unauthorized(_UNAUTHORIZED, f"no admin token from {_name(client)}")
        self._count_failure(RejectionCause.MISMATCH, "wrong admin token")
        wait = self._throttle.add_failure(client, token_hash(authorization))
        count = self._throttle.failures(client)
        if wait:
            reason = f"the same wrong admin token from {_name(client)} ({count} so far); correct it"
            reason += self._proxy_advice(scope, headers)
            return _too_many(_REPEATED, wait, reason)
        reason = f"wrong admin token from {_name(client)} ({count} so far)"
        if seconds := self._throttle.remaining_seconds(client):
            reason += f"; all its requests get 429 for {math.ceil(seconds)} s"
            reason += self._proxy_advice(scope, headers)
        return _unauthorized(_UNAUTHORIZED, reason)

    def _proxy_advice(self, scope: Scope, headers: Headers) -> str:
        return f"; {TRUST_ADVICE}" if self._proxies.is_unknown_proxy(scope, headers) else ""


def _name(client: str) -> str:
    return client or "a client without an address"


def _unauthorized(message: str, reason: str) -> AuthenticationFailed:
    challenge = (("www-authenticate", "Bearer"),)
    return AuthenticationFailed(401, "unauthorized", message, headers=challenge, reason=reason)


def _too_many(message: str, wait: float, reason: str) -> AuthenticationFailed:
    seconds = str(math.ceil(wait))
    return AuthenticationFailed(
        429,
        "too_many_failures",
        message.format(seconds),
        headers=(("retry-after", seconds),),
        reason=reason,
    )
