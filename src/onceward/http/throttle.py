"""A limit on wrong admin tokens for each client, so that tokens cannot be guessed at full speed.

A client that sends several different wrong tokens is refused for a short time, without a look at
its token: a correct guess would otherwise be seen. A wrong token that comes again is no guess. It
is refused by itself, so that one client with an outdated token blocks no other behind its address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onceward.http.addresses import network_of
from onceward.runtime.clock import Clock

FAILURES_BEFORE_BLOCK: Final = 5
"""Wrong tokens after which a client is blocked. The last of them still gets its 401."""
FIRST_BLOCK_SECONDS: Final = 1.0
MAX_BLOCK_SECONDS: Final = 60.0
FORGET_SECONDS: Final = 600.0
"""How long after its last guess a client is forgotten."""
MAX_CLIENTS: Final = 4_096
"""The most clients that are remembered: blocked before, and as many others."""
REMEMBERED_TOKENS: Final = 8
"""Hashes of wrong tokens that are remembered for a client."""


@dataclass(slots=True)
class _Client:
    """The wrong tokens of one client."""

    last_guess: float
    guesses: int = 0
    repeats: int = 0
    blocked_until: float = 0.0
    tokens: tuple[bytes, ...] = ()


class Throttle:
    """Counts wrong tokens by client, and blocks clients that guess.

    The memory is bounded. New clients displace only clients that were never blocked: to make the
    throttle forget a blocked client, an attacker has to get `MAX_CLIENTS` others blocked.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._suspects: dict[str, _Client] = {}
        self._blocked: dict[str, _Client] = {}
        self._last_end = 0.0

    @property
    def is_active(self) -> bool:
        """Whether any client is blocked now. Without one, no address needs to be parsed."""
        return bool(self._last_end) and self._clock.monotonic() < self._last_end

    def remaining_seconds(self, address: str) -> float:
        """Return for how long the client at an address is blocked; 0 if it is not."""
        client = self._blocked.get(network_of(address))
        return max(0.0, client.blocked_until - self._clock.monotonic()) if client else 0.0

    def add_failure(self, address: str, token: bytes) -> float:
        """Count a wrong token, given by its hash, and block the client if it guesses.

        Return the seconds to wait if the client sent this token before, too often; else 0.
        """
        now = self._clock.monotonic()
        network = network_of(address)
        client = self._take(network)
        if client is None or now - client.last_guess > FORGET_SECONDS:
            client = _Client(now)
        wait = 0.0
        if token in client.tokens:
            client.repeats += 1
            wait = _block_seconds(client.guesses + client.repeats - 1)
        else:
            client.guesses += 1
            client.last_guess = now
            client.tokens = (*client.tokens, token)[-REMEMBERED_TOKENS:]
            if seconds := _block_seconds(client.guesses):
                client.blocked_until = now + seconds
                self._last_end = max(self._last_end, client.blocked_until)
        self._put(network, client)
        return wait

    def failures(self, address: str) -> int:
        """Return the wrong tokens that the client at an address has sent, as far as remembered."""
        network = network_of(address)
        client = self._blocked.get(network) or self._suspects.get(network)
        return client.guesses + client.repeats if client else 0

    def _take(self, network: str) -> _Client | None:
        return self._blocked.pop(network, None) or self._suspects.pop(network, None)

    def _put(self, network: str, client: _Client) -> None:
        """Store a client as the newest one; drop the oldest if there are too many."""
        clients = self._blocked if client.blocked_until else self._suspects
        if len(clients) >= MAX_CLIENTS:
            del clients[next(iter(clients))]
        clients[network] = client


def _block_seconds(failures: int) -> float:
    """Return how long a client is refused after so many wrong tokens; 0 if it is not."""
    if failures < FAILURES_BEFORE_BLOCK:
        return 0.0
    doublings = min(failures - FAILURES_BEFORE_BLOCK, 10)  # far beyond the maximum
    return min(MAX_BLOCK_SECONDS, FIRST_BLOCK_SECONDS * 2.0**doublings)
