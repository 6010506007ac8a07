"""The address of a Redis server, from its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from onceward.errors import ConfigurationError

DEFAULT_PORT: Final = 6379
_TLS: Final = {"redis": False, "rediss": True}
_DATABASE: Final = re.compile("[0-9]{1,9}")
_FORM: Final = "redis://user:password@host:6379/0, or rediss:// for TLS"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """How to reach a database of a Redis server."""

    host: str
    port: int
    database: int
    has_tls: bool
    user: str = field(repr=False)
    password: str = field(repr=False)

    def __str__(self) -> str:
        scheme = "rediss" if self.has_tls else "redis"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.database}"


def parse_address(url: str) -> RedisAddress:
    """Read the URL of a Redis server. Raise ConfigurationError, without the URL: it has a password.

    An @ or / in a user or a password must be percent-encoded, so that no part of a password can be
    mistaken for the host and be logged.
    """
    if not url.isprintable():  # urlsplit() drops some of the others, and would change a password
        raise ConfigurationError(f"redis: the URL has a control character; it must be {_FORM}")
    try:
        parts = urlsplit(url)
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        raise ConfigurationError(
            f"redis: the host or the port is not valid; it must be {_FORM}"
        ) from None
    if parts.scheme not in _TLS:
        raise ConfigurationError(f"redis: the URL must be {_FORM}")
    if fault := _fault(parts):
        raise ConfigurationError(f"redis: {fault}; it must be {_FORM}")
    user, password = _decoded(parts.username), _decoded(parts.password)
    return RedisAddress(
        host=parts.hostname or "",
        port=port,
        database=int(parts.path.strip("/") or 0),
        has_tls=_TLS[parts.scheme],
        user=user,
        password=password,
    )


def _decoded(text: str | None) -> str:
    try:
        return unquote(text or "", errors="strict")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"redis: the user or the password is not UTF-8; it must be {_FORM}"
        ) from None


def _fault(parts: SplitResult) -> str | None:
    database = parts.path.removeprefix("/")
    if parts.netloc.count("@") > 1:
        return "an @ in the user or the password must be written %40"
    if not parts.hostname:
        return "the URL has no host"
    if not _is_host(parts.hostname) or parts.port == 0:
        return "the host or the port is not valid"
    if parts.query or parts.fragment:
        return "the URL has options after a ? or #, which are not supported"
    if database and not _DATABASE.fullmatch(database):
        return "the path of the URL is not the number of a database"
    has_only_user = parts.username and not parts.password
    return "the URL has a user without a password" if has_only_user else None


def _is_host(host: str) -> bool:
    """Return whether a host can be looked up: otherwise the lookup raises no OSError."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True
