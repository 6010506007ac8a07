"""Forwarded headers, trusted only from configured proxies, and signs of other proxies."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from onceward.errors import ConfigurationError
from onceward.http.addresses import parse_address
from onceward.http.responses import Scope
from onceward.sources.request import Headers

_MAPPED_BITS: Final = 96  # in front of an IPv4 address in IPv6
_MAX_HOPS: Final = 20
"""Addresses of X-Forwarded-For that are read, from the right."""
_HOP: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[0-9]{1,5})?")
"""An address, with a port as some proxies write it."""

_PROXY_HEADERS: Final = frozenset(
    {
        *(b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip"),
        *(b"x-original-host", b"x-original-url", b"x-original-forwarded-for", b"x-rewrite-url"),
        *(b"cdn-loop", b"cf-connecting-ip", b"cf-ray", b"true-client-ip"),
        *(b"fastly-client-ip", b"fly-client-ip", b"x-envoy-external-address"),
    }
)
_PROXY_PREFIX: Final = b"x-forwarded-"

TRUST_ADVICE: Final = "if it is your proxy, add it to trusted_proxies"
"""Not "add it": anyone can send the headers of a proxy."""


class Proxies:
    """Trusted proxies, as addresses and networks. Raises ConfigurationError."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = []
        for text in trusted:
            try:
                self._networks.append(_network(text))
            except ValueError:
                message = (
                    f"trusted_proxies: {text!r} is neither an address nor a network; "
                    "write it like 10.0.0.7 or 10.0.0.0/8"
                )
                raise ConfigurationError(message) from None

    def client(self, scope: Scope, headers: Headers) -> str:
        """Return the address of the client: the nearest one that is no trusted proxy.

        It is the peer, or behind trusted proxies the right-most address of X-Forwarded-For that is
        not trusted; a sender can write any address to the left of that one. Without a peer, such as
        on a Unix socket, it is an empty text.
        """
        address = self.peer(scope)
        hops = (headers.joined(b"x-forwarded-for") or b"").decode("latin-1")
        for hop in reversed(hops.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
            if not self.trusts_address(address):
                break
            match = _HOP.fullmatch(hop.strip())
            forwarded = (match[1] or match[2]) if match else hop.strip()
            if parse_address(forwarded) is None:
                break
            address = forwarded
        return address

    def is_unknown_proxy(self, scope: Scope, headers: Headers) -> bool:
        """Return whether the peer seems to be a proxy and is not a trusted one."""
        peer = self.peer(scope)
        return bool(peer) and is_forwarded(headers) and not self.trusts_address(peer)

    @staticmethod
    def peer(scope: Scope) -> str:
        """Return the address that the connection comes from, or an empty text."""
        client = scope.get("client")
        return str(client[0] or "") if client else ""

    def trusts_address(self, address: str) -> bool:
        """Return whether an address is that of a trusted proxy."""
        if not self._networks or not address:
            return False
        parsed = parse_address(address)
        return parsed is not None and any(parsed in network for network in self._networks)


def is_forwarded(headers: Headers) -> bool:
    """Return whether a proxy or a tunnel passed the request on."""
    for name, _ in headers.pairs:  # any() would take twice as long
        if name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX):
            return True
    return False


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return a network, one of IPv4 in IPv6 as IPv4, like the addresses. Raises ValueError."""
    network = ipaddress.ip_network(text, strict=False)
    if isinstance(network, ipaddress.IPv4Network) or network.prefixlen < _MAPPED_BITS:
        return network
    mapped = network.network_address.ipv4_mapped
    return ipaddress.ip_network((mapped, network.prefixlen - _MAPPED_BITS)) if mapped else network
