"""Addresses that a forward may connect to: by default only public ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from onceward.errors import EffectNotApplied
from onceward.work.forwarding.target import Target

_SPECIAL_IPV4: Final[tuple[tuple[IPv4Network, str], ...]] = tuple(
    (IPv4Network(text), kind)
    for text, kind in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "private"),  # carrier-grade NAT, and the metadata of Alibaba Cloud
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),  # Azure's, although it is a public address
        ("169.254.0.0/16", "link-local"),  # with the metadata of most clouds
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("192.31.196.0/24", "reserved"),
        ("192.52.193.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "reserved"),
        ("198.18.0.0/15", "private"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
# ipaddress.is_global differs between versions of Python.
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_SPECIAL_IPV6: Final[tuple[tuple[IPv6Network, str], ...]] = tuple(
    (IPv6Network(text), kind)
    for text, kind in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("64:ff9b:1::/48", "private"),
        ("2001::/23", "reserved"),  # with Teredo
        ("2001:db8::/32", "reserved"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "reserved"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
_UNENCRYPTED_KINDS: Final = frozenset({"link-local", "loopback", "private", "unspecified"})
"""Addresses of the own network. Others that are not public may still be routed over the internet,
such as IPv4-mapped and 6to4 ones.
"""


def special_kind(text: str) -> str | None:
    """Return why an address is not public, such as ``loopback``; None for a public one.

    An IPv4 address within an IPv6 address of the well-known prefix of NAT64 decides for it: in a
    network without IPv4, every name resolves to such an address.
    """
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        return _kind_of_ipv6(address)
    return _find(address, _SPECIAL_IPV4)


def needs_encryption(kind: str | None) -> bool:
    """Return whether payloads to an address of this kind may leave the own network."""
    return kind not in _UNENCRYPTED_KINDS


def _kind_of_ipv6(address: IPv6Address) -> str | None:
    if address in _NAT64:
        return _find(IPv4Address(int(address) & 0xFFFF_FFFF), _SPECIAL_IPV4)
    kind = next((kind for network, kind in _SPECIAL_IPV6 if address in network), None)
    return kind or (None if address in _GLOBAL_IPV6 else "reserved")


def _find(address: IPv4Address, networks: Iterable[tuple[IPv4Network, str]]) -> str | None:
    return next((kind for network, kind in networks if address in network), None)


def require_allowed(target: Target, addresses: Sequence[str], *, allow_private: bool) -> None:
    """Raise EffectNotApplied if a target must not be sent to one of its addresses.

    All are checked, not only the one that is used: a name that mixes public and private addresses
    is an attack, or a mistake. Plain HTTP stays within private networks.
    """
    for address in addresses:
        kind = special_kind(address)
        if kind is not None and not allow_private:
            raise EffectNotApplied(
                f"{target.host} has the address {address}, which is not public ({kind}); nothing "
                "was sent. Pass allow_private=True if the app is in your own network"
            )
        if needs_encryption(kind) and not target.is_encrypted:
            raise EffectNotApplied(
                f"{target.host} has the {kind or 'public'} address {address}; nothing was sent, "
                "because http:// does not encrypt. Use https://"
            )
