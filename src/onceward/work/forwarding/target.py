"""Targets: the URLs that events are forwarded to, checked at start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTP_PORT, HTTPS_PORT
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

_PORTS: Final = {"http": HTTP_PORT, "https": HTTPS_PORT}
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_NUMERIC_END: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_LIMIT_CHARACTERS: Final = 2_000
EXAMPLE: Final = "https://billing.example/webhooks"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to post events."""

    scheme: str
    host: str
    """A name in lower case, or an address without brackets."""
    port: int
    path: str
    query: str = field(default="", repr=False)
    """It may contain a secret: no message shows it."""

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme == "https"

    @property
    def address(self) -> str | None:
        """The host, if it is an address and not a name."""
        return self.host if _parse_address(self.host) else None

    @property
    def is_local_name(self) -> bool:
        """Whether the host is a name that always means this machine."""
        return self.host == "localhost" or self.host.endswith(".localhost")

    @property
    def authority(self) -> str:
        """The host, with the port unless it is the scheme's own: the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def request_target(self) -> str:
        """The path and the query, as in a request line."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def text(self) -> str:
        """The URL without its query, for people."""
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_target(url: object) -> Target | list[str]:
    """Return the target of a URL, or its faults, which never quote it: it may be secret."""
    if not isinstance(url, str):
        return [f"to is a {type(url).__name__}; use a URL such as {EXAMPLE!r}"]
    if fault := _text_fault(url):
        return [f"to {fault}"]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a bracket without its pair, or a port that is no number
        return [f"to is not a URL; check its host and port, as in {EXAMPLE!r}"]
    if faults := [f"to {fault}" for fault in _part_faults(parts, port)]:
        return faults
    return Target(
        scheme=parts.scheme,
        host=parts.hostname or "",
        port=_PORTS[parts.scheme] if port is None else port,
        path=parts.path or "/",
        query=parts.query,
    )


def _text_fault(url: str) -> str | None:
    if not url:
        return "is empty; is the environment variable set?"
    if not url.isascii():
        return "has a character beyond ASCII; write the host in Punycode, and escape the path"
    if not url.isprintable() or " " in url or "\\" in url:
        return "has a space, a backslash or a control character; remove it, or escape it"
    if "#" in url:
        return "contains a fragment (#…), which is never sent; remove it"
    if len(url) > _LIMIT_CHARACTERS:
        return f"is {len(url)} characters long; the limit is {_LIMIT_CHARACTERS}"
    return None


def _part_faults(parts: SplitResult, port: int | None) -> Iterator[str]:
    if parts.scheme not in _PORTS:
        yield f"begins with neither https:// nor http://; use a URL such as {EXAMPLE!r}"
        return
    if "@" in parts.netloc:
        yield "contains a user or a password; the signature proves who sends, so remove them"
    if port == 0:
        yield "has the port 0; use the port of the app"
    if fault := _host_fault(parts.hostname or ""):
        yield fault


def _host_fault(host: str) -> str | None:
    if not host:
        return f"has no host; use a URL such as {EXAMPLE!r}"
    if _parse_address(host):
        return None
    if _NUMERIC_END.fullmatch(host):  # other software reads 127.1 and 0x7f000001 as addresses
        return "has a number as its host; write an address in full, as in 127.0.0.1"
    if not _NAME.fullmatch(host):
        return "has a host that is neither a name nor an address"
    return None


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
