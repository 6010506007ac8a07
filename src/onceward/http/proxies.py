"""Forwarded headers, trusted only from configured proxies."""

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
    """Trusted proxies, as addresses and networks. Raises ConfigurationError."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = []
        for text in trusted:
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                message = (
                    f"trusted_proxies: {text!r} is neither an address nor a network; "
                    "write it like 10.0.0.7 or 10.0.0.0/8"
                )
                raise ConfigurationError(message) from None

    def origin(self, scope: Scope, headers: Headers) -> tuple[str, str]:
        """Return the scheme and host that the sender used, as far as the headers show."""
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
    """Return the last value: the nearest proxy set it, while the sender may have set the others."""
    value = (headers.joined(name) or b"").decode("latin-1").rpartition(",")[2].strip()
    return value if pattern.fullmatch(value) else None
