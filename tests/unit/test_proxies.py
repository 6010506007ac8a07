"""What a proxy says is believed from those that are configured, and from nobody else."""

import pytest

from onceward.errors import ConfigurationError
from onceward.http.proxies import Proxies
from onceward.sources.request import Headers

SAID = [
    (b"host", b"10.0.0.7:3000"),
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"evil.example, shop.example"),
]


def origin(
    trusted: list[str], client: str | None, headers: list[tuple[bytes, bytes]] = SAID
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
def test_a_configured_proxy_is_believed(trusted: list[str], client: str) -> None:
    assert origin(trusted, client) == ("https", "shop.example")


@pytest.mark.parametrize(
    ("trusted", "client"),
    [([], "10.0.0.1"), (["10.0.0.1"], "10.0.0.2"), (["10.0.0.1"], None), (["10.0.0.1"], "unix")],
)
def test_nobody_else_is(trusted: list[str], client: str | None) -> None:
    assert origin(trusted, client) == ("http", "10.0.0.7:3000")


@pytest.mark.parametrize("host", [b"", b"a b", b"shop.example/path", b"shop.example:99999999"])
def test_what_cannot_be_a_host_is_passed_over(host: bytes) -> None:
    headers = [(b"host", b"here"), (b"x-forwarded-host", host), (b"x-forwarded-proto", b"ftp")]
    assert origin(["10.0.0.1"], "10.0.0.1", headers) == ("http", "here")


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"'shop\.example' is neither an address"):
        Proxies(["shop.example"])
