"""Forwarded headers are trusted from configured proxies only."""

import pytest

from onceward.errors import ConfigurationError
from onceward.http.proxies import Proxies
from onceward.sources.request import Headers

TRUSTED: list[tuple[list[str], str]] = [
    (["10.0.0.1"], "10.0.0.1"),
    (["10.0.0.0/8"], "10.9.9.9"),
    (["10.0.0.0/8"], "::ffff:10.9.9.9"),
    (["::ffff:10.0.0.0/104"], "10.9.9.9"),
    (["::1"], "::1"),
]


def test_a_configured_proxy_is_trusted(subtests: pytest.Subtests) -> None:
    for trusted, client in TRUSTED:
        with subtests.test(trusted=trusted, client=client):
            assert Proxies(trusted).trusts_address(client)


UNTRUSTED: list[tuple[list[str], str]] = [
    ([], "10.0.0.1"),
    (["10.0.0.1"], "10.0.0.2"),
    (["10.0.0.1"], ""),
    (["10.0.0.1"], "unix"),
]


def test_other_clients_are_not_trusted(subtests: pytest.Subtests) -> None:
    for trusted, client in UNTRUSTED:
        with subtests.test(trusted=trusted, client=client):
            assert not Proxies(trusted).trusts_address(client)


def test_a_host_name_is_not_a_trusted_proxy() -> None:
    with pytest.raises(ConfigurationError, match=r"'shop\.example' is neither an address"):
        Proxies(["shop.example"])


# The address of the client.


def client(trusted: list[str], peer: str | None, *forwarded: bytes) -> str:
    headers = [(b"x-forwarded-for", value) for value in forwarded]
    scope = {"client": (peer, 1234) if peer is not None else None}
    return Proxies(trusted).client(scope, Headers(headers))


FORWARDED: list[tuple[list[bytes], str]] = [
    ([b"203.0.113.7"], "203.0.113.7"),
    ([b"1.1.1.1, 203.0.113.7"], "203.0.113.7"),
    ([b"1.1.1.1", b"203.0.113.7"], "203.0.113.7"),
    ([b"1.1.1.1,203.0.113.7 , 10.0.0.9"], "203.0.113.7"),
    ([b"203.0.113.7:4711"], "203.0.113.7"),
    ([b"[2001:db8::1]:4711"], "2001:db8::1"),
    ([b"2001:db8::1"], "2001:db8::1"),
    ([b"10.0.0.8, 10.0.0.9"], "10.0.0.8"),
    ([b"1.1.1.1, unknown"], "10.0.0.1"),
    ([b"1.1.1.1, "], "10.0.0.1"),
    ([b"1.1.1.1, \x1b[31m, 10.0.0.9"], "10.0.0.9"),
    ([b""], "10.0.0.1"),
    ([], "10.0.0.1"),
    ([b"1.1.1.1, " + b", ".join([b"10.0.0.9"] * 1000)], "10.0.0.9"),
]


def test_behind_proxies_the_client_is_the_last_untrusted_address(subtests: pytest.Subtests) -> None:
    for forwarded, address in FORWARDED:
        with subtests.test(forwarded=forwarded[:3]):
            assert client(["10.0.0.0/8"], "10.0.0.1", *forwarded) == address


@pytest.mark.parametrize("trusted", [[], ["10.0.0.0/8"]])
def test_without_a_trusted_proxy_the_client_is_the_peer(trusted: list[str]) -> None:
    assert client(trusted, "192.0.2.1", b"203.0.113.7") == "192.0.2.1"
    assert client(trusted, None, b"203.0.113.7") == ""
    assert client(trusted, "", b"203.0.113.7") == ""
