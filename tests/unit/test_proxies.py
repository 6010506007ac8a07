"""Forwarded headers are trusted from configured proxies only."""

import pytest

from onceward.errors import ConfigurationError
from onceward.http.proxies import Proxies
from onceward.sources.request import Headers

FORWARDED = [
    (b"host", b"10.0.0.7:3000"),
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"evil.example, shop.example"),
]


def origin(
    trusted: list[str], client: str | None, headers: list[tuple[bytes, bytes]] = FORWARDED
) -> tuple[str, str]:
    scope = {"scheme": "http", "client": (client, 1234) if client else None}
    return Proxies(trusted).origin(scope, Headers(headers))


@pytest.mark.parametrize(
    ("trusted", "client"),
    [
        (["10.0.0.1"], "10.0.0.1"),
        (["10.0.0.0/8"], "10.9.9.9"),
        (["10.0.0.0/8"], "::ffff:10.9.9.9"),
        (["::1"], "::1"),
    ],
)
def test_a_configured_proxy_is_trusted(trusted: list[str], client: str) -> None:
    assert origin(trusted, client) == ("https", "shop.example")


@pytest.mark.parametrize(
    ("trusted", "client"),
    [([], "10.0.0.1"), (["10.0.0.1"], "10.0.0.2"), (["10.0.0.1"], None), (["10.0.0.1"], "unix")],
)
def test_other_clients_are_not_trusted(trusted: list[str], client: str | None) -> None:
    assert origin(trusted, client) == ("http", "10.0.0.7:3000")


@pytest.mark.parametrize("host", [b"", b"a b", b"shop.example/path", b"shop.example:99999999"])
def test_an_invalid_forwarded_value_is_ignored(host: bytes) -> None:
    headers = [(b"host", b"here"), (b"x-forwarded-host", host), (b"x-forwarded-proto", b"ftp")]
    assert origin(["10.0.0.1"], "10.0.0.1", headers) == ("http", "here")


def test_a_host_name_is_not_a_trusted_proxy() -> None:
    with pytest.raises(ConfigurationError, match=r"'shop\.example' is neither an address"):
        Proxies(["shop.example"])
