"""Addresses of clients, and which of them count as one client."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

UNKNOWN: Final = ""
"""The network of a request without an address, such as one over a Unix socket."""
_IPV6_HOST_BITS: Final = 64  # one subscriber has at least this many addresses

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> Address | None:
    """Return an address, one of IPv4 in IPv6 as IPv4; None if the text is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address


@lru_cache(maxsize=1_024)
def network_of(text: str) -> str:
    """Return an IPv4 address itself, and the /64 network of an IPv6 address.

    Addresses that are not valid share one network, as do requests without an address.
    """
    address = parse_address(text)
    if address is None:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    start = ipaddress.IPv6Address(int(address) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS)
    return f"{start}/{_IPV6_HOST_BITS}"


def is_loopback(name: str) -> bool:
    """Return whether a host name or address can only mean this machine."""
    address = parse_address(name)
    return name == "localhost" if address is None else address.is_loopback
