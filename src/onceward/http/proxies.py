"""What a proxy in front says of a request: believed only where the proxy is configured."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from onceward.errors import ConfigurationError
from onceward.http.responses import Scope
from onceward.sources.request import Headers

_HOST: Final = re.compile(r"[A-Za-z0-9_.\-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")


class Proxies:
    """The proxies that are trusted, as addresses and networks. Raises ConfigurationError."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = []
        for text in trusted:
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                message = f"trusted_proxies: {text!r} is neither an address nor a network"
                raise ConfigurationError(message) from None

    def origin(self, scope: Scope, headers: Headers) -> tuple[str, str]:
        """The scheme and the host that the sender used, as far as anybody knows."""
        scheme = scope.get("scheme", "http")
        host = (headers.get(b"host") or b"").decode("latin-1")
        if self._trusts(scope):
            scheme = _last_value(headers, b"x-forwarded-proto", re.compile("https?")) or scheme
            host = _last_value(headers, b"x-forwarded-host", _HOST) or host
        return scheme, host

    def _trusts(self, scope: Scope) -> bool:
        client = scope.get("client")
        if not self._networks or not client:
            return False
        try:
            address = ipaddress.ip_address(client[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        return any(address in network for network in self._networks)


def _last_value(headers: Headers, name: bytes, pattern: re.Pattern[str]) -> str | None:
    """What the nearest proxy said, if it can be true: others before it may be the sender's own."""
    value = (headers.joined(name) or b"").decode("latin-1").rpartition(",")[2].strip()
    return value if pattern.fullmatch(value) else None
