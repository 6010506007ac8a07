"""Limits on connections: in all, and from one address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from onceward.http.addresses import is_loopback, network_of
from onceward.http.proxies import TRUST_ADVICE, Proxies
from onceward.settings import Settings

LOOPBACK_RESERVE: Final = 16
"""Connections that loopback may always have: probes and operators get in while others do not."""

MAX_REFUSED: Final = 100
"""Refused connections that stay open for a moment, so that their clients can read the refusal."""

Explain = Callable[[], str]
"""Returns which limit is exceeded, and by whom."""


class ConnectionLimits:
    """Counts the open connections of a process.

    Loopback and trusted proxies have no limit of their own: one proxy is one address for all
    senders behind it.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_total = settings.max_connections
        self._max_per_address = settings.max_connections_per_address
        self._proxies = Proxies(settings.trusted_proxies)
        self._total = 0
        self._loopback = 0
        self._refused = 0
        self._per_address: Counter[str] = Counter()

    @property
    def uses_reserve(self) -> bool:
        """Whether more connections are open than the limit in all."""
        return self._total > self._max_total

    @property
    def is_flooded(self) -> bool:
        """Whether so many refused connections are open that further ones get no response."""
        return self._refused > MAX_REFUSED

    def enter(self, address: str | None) -> Explain | None:
        """Count a connection. Return the reason if it exceeds a limit.

        Refused connections are counted apart, so that one address cannot use up the total.
        """
        key = network_of(address or "")
        exceeded = self._exceeded(address, key)
        if exceeded is not None:
            self._refused += 1
            return exceeded
        self._total += 1
        self._loopback += _is_local(address)
        self._per_address[key] += 1
        return None

    def _exceeded(self, address: str | None, key: str) -> Explain | None:
        has_reserve = _is_local(address) and self._loopback < LOOPBACK_RESERVE
        if self._total >= self._max_total and not has_reserve:
            return self._explain_total
        if self._per_address[key] >= self._max_per_address and self._is_limited(address):
            return lambda: self._explain_address(key)
        return None

    def leave(self, address: str | None, *, was_admitted: bool = True) -> None:
        """Stop counting a connection."""
        if not was_admitted:
            self._refused -= 1
            return
        key = network_of(address or "")
        self._total -= 1
        self._loopback -= _is_local(address)
        self._per_address[key] -= 1
        if not self._per_address[key]:
            del self._per_address[key]

    def _is_limited(self, address: str | None) -> bool:
        if not address or _is_local(address):
            return False
        return not self._proxies.trusts_address(address)

    def _explain_total(self) -> str:
        holder, count = max(self._per_address.items(), key=lambda item: item[1])
        held = f"; {holder} holds {count}" if holder else ""
        return f"max_connections ({self._max_total}) are open{held}"

    def _explain_address(self, key: str) -> str:
        limit = f"max_connections_per_address ({self._max_per_address})"
        return f"{limit} are open from {key}; {TRUST_ADVICE}"


def _is_local(address: str | None) -> bool:
    return bool(address) and is_loopback(address or "")
