"""Authentication: admin tokens, and the host and origin checks on open endpoints."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final

from onceward.errors import ConfigurationError
from onceward.http.errors import HttpError
from onceward.sources.request import Headers

TOKENS_VARIABLE: Final = "ONCEWARD_ADMIN_TOKENS"
MIN_TOKEN_LENGTH: Final = 16
DEV_NAME: Final = "dev"
"""The token holder's name under ``--dev``, where no token is required."""

_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]{1,5})?"
)

_PROXY_HEADERS: Final = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")

_UNAUTHORIZED: Final = (
    "Send a valid admin token: Authorization: Bearer <token>, without the name before it."
)
_NOBODY_AUTHORIZED: Final = (
    f"No admin token is set. Set {TOKENS_VARIABLE}=name:token, or run `onceward serve app.py` "
    "once, which creates a token; then restart this app."
)
"""Only a mounted app has no token: it creates none."""

# Sec-Fetch-Site: absent without a browser, `none` if the user opened the URL, or our own page.
_SAME_SITE: Final = (None, b"none", b"same-origin")


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


class Authenticator:
    """Checks who sends a request. With `dev`, every client on this machine is authenticated."""

    def __init__(
        self, *, tokens: Mapping[str, bytes], allowed_hosts: Collection[str] = (), dev: bool = False
    ) -> None:
        self._tokens = dict(tokens)
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._dev = dev

    def authenticate(self, headers: Headers) -> str:
        """Return the name of the token holder. Raises HttpError (401; under ``--dev`` 403)."""
        if self._dev:
            if any(headers.joined(name) is not None for name in _PROXY_HEADERS):
                message = "--dev serves this machine only; connect without a proxy."
                raise HttpError(403, "forwarded", message)
            _check_host_and_origin(headers, hosts=())
            return DEV_NAME
        kind, _, token = (headers.get(b"authorization") or b"").partition(b" ")
        digest = token_hash(token.strip())
        name = None
        for holder, expected in self._tokens.items():
            if hmac.compare_digest(expected, digest):
                name = holder
        if name is None or kind.lower() != b"bearer":
            raise HttpError(
                401,
                "unauthorized",
                _UNAUTHORIZED if self._tokens else _NOBODY_AUTHORIZED,
                headers=(("www-authenticate", "Bearer"),),
            )
        return name

    def check_host_and_origin(self, headers: Headers) -> None:
        """Reject requests from pages of other sites. Raises HttpError (403)."""
        _check_host_and_origin(headers, hosts=self._hosts)


def is_loopback(name: str) -> bool:
    """Return whether a host name or address can only mean this machine."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _check_host_and_origin(headers: Headers, hosts: Collection[str]) -> None:
    host = (headers.get(b"host") or b"").decode("latin-1").lower()
    name = _host_name(host)
    if name not in hosts and not is_loopback(name):
        message = "This host name is not allowed. Add it to the setting allowed_hosts."
        raise HttpError(403, "foreign_host", message)
    origin = headers.get(b"origin")
    is_foreign = origin is not None and not _is_same_origin(origin, host)
    if is_foreign or headers.get(b"sec-fetch-site") not in _SAME_SITE:
        message = "Pages of other sites may not send requests. Send them from a server."
        raise HttpError(403, "foreign_origin", message)


def _host_name(host: str) -> str:
    """Return the name in a Host header without its port, or "" if the header is malformed."""
    match = _HOST.fullmatch(host)
    return (match["address"] or match["name"]) if match else ""


def _is_same_origin(origin: bytes, host: str) -> bool:
    return origin.decode("latin-1").lower() in (f"http://{host}", f"https://{host}")
