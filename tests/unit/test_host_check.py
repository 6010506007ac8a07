"""The host check decides once for each allowed host, within bounded memory."""

from collections import Counter
from typing import Any

import pytest

from onceward.http import addresses, hosts
from onceward.http.auth import Authenticator
from onceward.http.errors import HttpError
from onceward.http.hosts import MAX_CACHED_HOSTS
from onceward.http.proxies import Proxies
from onceward.http.throttle import Throttle
from onceward.sources.request import Headers
from tests.factories import FakeClock

SCOPE = {"client": ("127.0.0.1", 1)}


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each name is parsed."""
    names: Counter[str] = Counter()
    is_loopback = addresses.is_loopback

    def counting(name: str) -> bool:
        names[name] += 1
        return is_loopback(name)

    monkeypatch.setattr(hosts, "is_loopback", counting)
    return names


@pytest.fixture
def authenticator() -> Authenticator:
    return Authenticator(
        tokens={},
        throttle=Throttle(FakeClock()),
        proxies=Proxies(()),
        count_failure=lambda *_: None,
        allowed_hosts=["inbox.example"],
        dev=True,
    )


def authenticate(authenticator: Authenticator, host: bytes) -> None:
    authenticator.authenticate(SCOPE, Headers([(b"host", host)]))


def test_an_allowed_host_is_parsed_once(
    authenticator: Authenticator, decided: Counter[str]
) -> None:
    for _ in range(100):
        authenticate(authenticator, b"127.0.0.1:3000")
        authenticate(authenticator, b"localhost:3000")
    assert decided == {"127.0.0.1": 1, "localhost": 1}


def test_the_hosts_of_dev_and_of_unsigned_sources_are_decided_apart(
    authenticator: Authenticator,
) -> None:
    headers = Headers([(b"host", b"inbox.example")])
    for _ in range(2):
        authenticator.check_host_and_origin(headers)
        with pytest.raises(HttpError, match="not allowed"):
            authenticator.authenticate(SCOPE, headers)


def test_refused_hosts_displace_nothing(
    authenticator: Authenticator, decided: Counter[str]
) -> None:
    authenticate(authenticator, b"127.0.0.1:3000")
    hosts = [*(b"%d.evil.example" % number for number in range(1_000)), b"x" * 30_000, b""]
    for host in hosts * 2:
        with pytest.raises(HttpError):
            authenticate(authenticator, host)
    authenticate(authenticator, b"127.0.0.1:3000")
    assert decided["127.0.0.1"] == 1
    assert cached(authenticator) == 1


def test_a_host_that_resembles_loopback_is_refused(
    authenticator: Authenticator, subtests: pytest.Subtests
) -> None:
    for host in (
        b"notlocalhost",
        b"evil.localhost",
        b"localhost.evil",
        b"localhost.",
        b"127.0.0.1.evil",
    ):
        with subtests.test(host=host), pytest.raises(HttpError, match="not allowed"):
            authenticate(authenticator, host)


@pytest.mark.parametrize("origin", [b"http://LOCALHOST:3000", b"https://localhost:3000"])
def test_the_own_origin_is_allowed_in_any_case_and_scheme(
    authenticator: Authenticator, origin: bytes
) -> None:
    headers = Headers([(b"host", b"Localhost:3000"), (b"origin", origin)])
    authenticator.authenticate(SCOPE, headers)


def test_many_allowed_hosts_are_forgotten_again(authenticator: Authenticator) -> None:
    for port in range(1, 1_000):
        authenticate(authenticator, b"localhost:%d" % port)
    assert cached(authenticator) == MAX_CACHED_HOSTS


def cached(authenticator: Authenticator) -> int:
    check: Any = authenticator._check_loopback
    size: int = check.cache_info().currsize
    return size
