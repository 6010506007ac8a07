"""Limits on connections: in all, and from one address."""

import pytest

from onceward.http.server.limits import LOOPBACK_RESERVE, ConnectionLimits
from onceward.settings import Settings

REMOTE = "203.0.113.7"


def limits(**settings: object) -> ConnectionLimits:
    return ConnectionLimits(Settings(max_connections_per_address=2, **settings))  # type: ignore[arg-type] # any setting


def reason(counted: ConnectionLimits, address: str | None) -> str:
    """Enter a connection that is refused, and return why."""
    explain = counted.enter(address)
    assert explain is not None
    return explain()


def test_connections_are_limited_in_all() -> None:
    counted = limits(max_connections=3)
    addresses = ["127.0.0.1", "127.0.0.1", REMOTE]
    assert [counted.enter(address) for address in addresses] == [None, None, None]
    assert reason(counted, "198.51.100.1") == "max_connections (3) are open; 127.0.0.1 holds 2"
    counted.leave("127.0.0.1")
    assert counted.enter("198.51.100.1") is None


def test_connections_from_one_address_are_limited() -> None:
    counted = limits()
    assert [counted.enter(REMOTE) for _ in range(2)] == [None, None]
    assert reason(counted, REMOTE) == (
        f"max_connections_per_address (2) are open from {REMOTE}; "
        "if it is your proxy, add it to trusted_proxies"
    )
    assert counted.enter("203.0.113.8") is None
    counted.leave(REMOTE)
    assert counted.enter(REMOTE) is None


@pytest.mark.parametrize(
    ("address", "other", "shown"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", "2001:db8::/64"),
        ("::ffff:203.0.113.7", REMOTE, REMOTE),
    ],
)
def test_addresses_of_one_network_count_as_one(address: str, other: str, shown: str) -> None:
    counted = limits()
    counted.enter(address)
    counted.enter(address)
    assert f"are open from {shown}; " in reason(counted, other)
    assert counted.enter("2001:db8:0:1::1") is None


def test_loopback_proxies_and_sockets_without_an_address_are_not_limited(
    subtests: pytest.Subtests,
) -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "10.0.0.7", None):
        with subtests.test(address=address):
            counted = limits(trusted_proxies=("10.0.0.0/8",))
            assert [counted.enter(address) for _ in range(10)] == [None] * 10


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_others_cannot_use_the_reserve_of_loopback(address: str) -> None:
    counted = limits(max_connections=3)
    for number in range(100):
        counted.enter(f"198.51.100.{number}")
    assert [counted.enter(address) for _ in range(LOOPBACK_RESERVE)] == [None] * LOOPBACK_RESERVE
    assert "max_connections (3) are open" in reason(counted, address)
    counted.leave(address)
    assert counted.enter(address) is None


def test_the_holder_is_not_the_one_who_is_refused() -> None:
    counted = limits(max_connections=3)
    for address in (REMOTE, REMOTE, "198.51.100.1"):
        counted.enter(address)
    for _ in range(100):
        assert reason(counted, "198.51.100.1").endswith(f"; {REMOTE} holds 2")


@pytest.mark.parametrize("address", ["10.0.0.7", None])
def test_proxies_and_other_sockets_have_no_reserve(address: str | None) -> None:
    counted = limits(max_connections=3, trusted_proxies=("10.0.0.0/8",))
    assert [counted.enter(address) for _ in range(3)] == [None] * 3
    assert reason(counted, address).startswith("max_connections (3) are open")


def test_refused_connections_do_not_use_up_the_total() -> None:
    counted = limits(max_connections=4)
    for _ in range(10):
        counted.enter(REMOTE)
    assert [counted.enter(f"198.51.100.{number}") for number in (1, 2)] == [None, None]
    assert counted.enter("198.51.100.3") is not None


def test_nothing_is_kept_of_a_closed_connection() -> None:
    counted = limits()
    for number in range(100):
        counted.enter(f"198.51.100.{number}")
        counted.leave(f"198.51.100.{number}")
    assert not counted._per_address
    assert (counted._total, counted._loopback) == (0, 0)
