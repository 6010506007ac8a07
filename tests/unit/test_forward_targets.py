"""Targets of forwards: what is refused at start, and which addresses may be connected to."""

from collections.abc import Mapping
from typing import Any

import pytest

from onceward import ConfigurationError, EffectNotApplied, Inbox
from onceward.work.forwarding.addresses import require_allowed, special_kind
from onceward.work.forwarding.target import Target, parse_target
from tests.receiver import SECRET

URL = "https://app.example/hooks"


def faults(to: Any = URL, secret: Any = SECRET, *patterns: str, **options: Any) -> tuple[str, ...]:
    """Return the faults of a forward, without its label."""
    with pytest.raises(ConfigurationError) as raised:
        Inbox().forward(*patterns or ("order.*",), to=to, secret=secret, **options)
    return tuple(fault.partition("): ")[2] for fault in raised.value.faults)


FAULTY_URLS: list[tuple[Any, str]] = [
    (None, "to is a NoneType"),
    ("", "to is empty; is the environment variable set?"),
    ("app.example/hooks", "begins with neither https:// nor http://"),
    ("ftp://app.example/", "begins with neither https:// nor http://"),
    ("file:///etc/passwd", "begins with neither https:// nor http://"),
    ("https://user:hidden@app.example/", "contains a user or a password"),
    ("https://@app.example/", "contains a user or a password"),
    ("https://app.example/#part", "contains a fragment"),
    ("https://app.example/#", "contains a fragment"),
    ("https:///hidden", "has no host"),
    ("https://app.example:0/", "has the port 0"),
    ("https://app.example:99999/", "is not a URL"),
    ("https://app.example:x/", "is not a URL"),
    ("https://[::1/", "is not a URL"),
    ("https://app.exämple/", "beyond ASCII"),
    ("https://app.example/a b", "has a space"),
    ("https://app.example/a\r\nx: y", "control character"),
    ("https://app.example\\@evil.example/", "backslash"),
    ("https://app.example./", "neither a name nor an address"),
    ("https://-app.example/", "neither a name nor an address"),
    ("https://app%2eexample/", "neither a name nor an address"),
    ("https://2130706433/", "a number as its host"),
    ("https://0x7f000001/", "a number as its host"),
    ("https://127.1/", "a number as its host"),
    ("https://0177.0.0.1/", "a number as its host"),
    (f"https://app.example/{'a' * 1981}", "2001 characters long; the limit is 2000"),
]


def test_a_url_that_cannot_work_is_refused(subtests: pytest.Subtests) -> None:
    for url, fault in FAULTY_URLS:
        with subtests.test(url=url):
            (found,) = faults(url)
            assert fault in found
            assert "hidden" not in found


def test_a_url_of_2000_characters_is_accepted() -> None:
    Inbox().forward("*", to=f"https://app.example/{'a' * 1980}", secret=SECRET)


PRIVATE_URLS = [
    ("https://127.0.0.1/", "host 127.0.0.1, which is not public (loopback)"),
    ("http://10.1.2.3/", "host 10.1.2.3, which is not public (private)"),
    ("https://[::ffff:127.0.0.1]/", "host ::ffff:127.0.0.1, which is not public (IPv4-mapped)"),
    ("https://169.254.169.254/", "not public (link-local)"),
    ("https://localhost:8000/", "host localhost, which is not public (loopback)"),
    ("https://a.LOCALHOST/", "host a.localhost, which is not public (loopback)"),
    ("http://app.example/", "begins with http://, which does not encrypt"),
]


def test_private_hosts_and_plain_http_need_an_option(subtests: pytest.Subtests) -> None:
    for url, fault in PRIVATE_URLS:
        with subtests.test(url):
            (found,) = faults(url)
            assert fault in found
            assert "allow_private=True" in found
            Inbox().forward("*", to=url, secret=SECRET, allow_private=True)


BEYOND_PRIVATE = [
    ("93.184.216.34", "public"),
    ("192.31.196.1", "reserved"),
    ("168.63.129.16", "cloud metadata"),
    ("::ffff:8.8.8.8", "IPv4-mapped"),
    ("2002:808:808::1", "6to4"),
    ("2001::1", "reserved"),
    ("64:ff9b::808:808", "public"),
]


def test_plain_http_is_refused_beyond_private_networks_in_any_case(
    subtests: pytest.Subtests,
) -> None:
    for host, kind in BEYOND_PRIVATE:
        with subtests.test(host):
            url = f"http://[{host}]/" if ":" in host else f"http://{host}/"
            (fault,) = faults(url, allow_private=True)
            assert f"{kind} host {host}, and http:// does not encrypt; use https://" in fault
            target = parse_target("http://app.example/")
            assert isinstance(target, Target)
            with pytest.raises(EffectNotApplied, match=f"app.example has the {kind} address"):
                require_allowed(target, ["10.0.0.1", host], allow_private=True)


FAULTY_SECRETS: list[tuple[Any, str]] = [
    (None, "secret is None: is its environment variable set? It must be a text that begins"),
    ("", "secret is empty; is the environment variable set?"),
    ("hidden", "secret does not begin with whsec_"),
    ("whsk_hidden", "secret is a key for asymmetric signatures"),
    ("whpk_hidden", "secret is a key for asymmetric signatures"),
    ("whsec_hidden!", "secret is not base64 after whsec_; was it copied in full?"),
    (SECRET[:-2], "secret is not base64 after whsec_"),
    (f"{SECRET[:-4]}----{SECRET[-4:]}", "secret is not base64 after whsec_"),
    ("whsec_aGlkZGVu", "secret has 6 bytes; use at least 24 random ones"),
    ([], "secret is an empty list"),
    ([SECRET, "hidden"], "secret 2 does not begin with whsec_"),
    ([SECRET, b"hidden"], "secret 2 is a bytes"),
]


def test_a_secret_that_cannot_sign_is_refused(subtests: pytest.Subtests) -> None:
    for secret, fault in FAULTY_SECRETS:
        with subtests.test(secret=secret):
            (found,) = faults(secret=secret)
            assert fault in found
            assert "hidden" not in found


FAULTY_OPTIONS: list[tuple[Mapping[str, Any], str]] = [
    ({"model": dict}, "model is not for forwards: the payload is forwarded as it was received"),
    ({"transaction": "shared"}, "transaction is not for forwards"),
    (
        {"timeout_seconds": 0},
        "timeout_seconds is 0; use a number of seconds above 0, up to 600",
    ),
    ({"timeout_seconds": 601}, "timeout_seconds is 601"),
    ({"timeout_seconds": True}, "timeout_seconds is True"),
    ({"allow_private": "yes"}, "allow_private is 'yes'; use True or False"),
    ({"retry_safe_for": "long"}, "retry_safe_for is 'long'; use a duration such as '24h'"),
    ({"max_attempts": 0}, "max_attempts is 0"),
    ({"allow_privat": True}, "unknown option 'allow_privat'; did you mean 'allow_private'?"),
    ({"mode": "inline"}, "unknown option 'mode'; mode belongs to the source: "),
    ({"name": "x" * 256}, "the name is 256 bytes long"),
]


def test_an_option_that_cannot_work_is_refused(subtests: pytest.Subtests) -> None:
    for options, fault in FAULTY_OPTIONS:
        with subtests.test(options=options):
            (found,) = faults(**options)
            assert fault in found


def test_every_fault_is_listed_with_the_line() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Inbox().forward("*", to="", secret="", name="billing")
    assert len(raised.value.faults) == 2
    for fault in raised.value.faults:
        assert fault.startswith("forward 'billing' (tests/unit/test_forward_targets.py:")


def test_a_forward_without_types_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"test_forward_targets.py:\d+\): no event type"):
        Inbox().forward(to=URL, secret=SECRET)


def test_two_forwards_to_one_host_need_names() -> None:
    inbox = Inbox()
    inbox.forward("a", to=URL, secret=SECRET)
    with pytest.raises(ConfigurationError) as raised:
        inbox.forward("b", to="https://app.example/other", secret=SECRET)
    assert "handler 'forward-app.example' (tests/unit/test_forward_targets.py" in str(raised.value)
    assert "the name is already in use by handler 'forward-app.example'" in str(raised.value)
    assert "pass another name=" in str(raised.value)
    inbox.forward("b", to="https://app.example/other", secret=SECRET, name="other")


def test_a_forward_is_refused_for_inline_sources(
    sqlite_url: str, subtests: pytest.Subtests
) -> None:
    for pattern in ("*", "order.*"):
        for source in (None, "shop"):
            with subtests.test(pattern=pattern, source=source):
                inbox = Inbox(sqlite_url)
                inbox.source("shop", preset="hmac", secrets=["a-long-secret"], mode="inline")
                inbox.forward(pattern, to=URL, secret=SECRET, source=source)
                with pytest.raises(ConfigurationError) as raised:
                    inbox.service()
                assert (
                    "inbox.forward cannot hold for source 'shop', whose mode is 'inline': the "
                    "sender may give up and send the event again before the outcome is known"
                ) in str(raised.value)


def test_a_target_is_shown_without_its_query() -> None:
    target = parse_target("https://App.Example:8443/hooks/7?token=hidden")
    assert isinstance(target, Target)
    assert target.text == "https://app.example:8443/hooks/7"
    assert target.request_target == "/hooks/7?token=hidden"
    assert "hidden" not in repr(target)


KINDS: list[tuple[str, str | None]] = [
    ("93.184.216.34", None),
    ("8.8.8.8", None),
    ("172.15.255.255", None),
    ("172.32.0.0", None),
    ("100.63.255.255", None),
    ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", None),
    ("64:ff9b::808:808", None),
    ("0.0.0.0", "unspecified"),  # noqa: S104 - it is refused
    ("0.1.2.3", "unspecified"),
    ("10.0.0.1", "private"),
    ("100.100.100.200", "private"),
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("168.63.129.16", "cloud metadata"),
    ("169.254.169.254", "link-local"),
    ("169.254.170.2", "link-local"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.0.0.192", "reserved"),
    ("192.168.1.1", "private"),
    ("198.19.255.255", "private"),
    ("203.0.113.9", "reserved"),
    ("224.0.0.251", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("::7f00:1", "reserved"),
    ("::ffff:8.8.8.8", "IPv4-mapped"),
    ("::ffff:127.0.0.1", "IPv4-mapped"),
    ("::ffff:0:127.0.0.1", "reserved"),
    ("64:ff9b::7f00:1", "loopback"),
    ("64:ff9b::a9fe:a9fe", "link-local"),
    ("64:ff9b:1::808:808", "private"),
    ("100::1", "reserved"),
    ("2001:0:7f00:1::", "reserved"),
    ("2001:db8::1", "reserved"),
    ("2002:7f00:1::", "6to4"),
    ("2002:808:808::", "6to4"),
    ("3fff::1", "reserved"),
    ("4000::1", "reserved"),
    ("fc00::1", "private"),
    ("fd00:ec2::254", "private"),
    ("fe80::1", "link-local"),
    ("fe80::1%lo", "link-local"),
    ("fec0::1", "private"),
    ("ff02::1", "multicast"),
]


def test_only_public_addresses_are_public(subtests: pytest.Subtests) -> None:
    for address, kind in KINDS:
        with subtests.test(address):
            assert special_kind(address) == kind


def test_one_private_address_among_public_ones_is_refused() -> None:
    target = parse_target(URL)
    assert isinstance(target, Target)
    require_allowed(target, ["8.8.8.8", "10.0.0.1"], allow_private=True)
    with pytest.raises(EffectNotApplied, match=r"app.example has the address 10.0.0.1, which is"):
        require_allowed(target, ["8.8.8.8", "10.0.0.1"], allow_private=False)


def test_plain_http_does_not_leave_private_networks() -> None:
    target = parse_target("http://app.example/")
    assert isinstance(target, Target)
    own = ["10.0.0.1", "127.0.0.1", "169.254.1.1", "::1", "fc00::1", "fe80::1%lo"]
    require_allowed(target, own, allow_private=True)
    with pytest.raises(EffectNotApplied, match=r"app.example has the public address 8.8.8.8"):
        require_allowed(target, ["10.0.0.1", "8.8.8.8"], allow_private=True)


def test_a_forward_without_its_arguments_says_what_to_write() -> None:
    options: Any = {"url": URL, "secrets": [SECRET]}
    with pytest.raises(ConfigurationError) as raised:
        Inbox().forward("order.*", **options)
    found = [fault.partition("): ")[2] for fault in raised.value.faults]
    assert [fault.partition(";")[0] for fault in found] == [
        "unknown option 'url'",
        "unknown option 'secrets'",
        "to is missing",
        "secret is missing",
    ]
    assert found[1].endswith("did you mean 'secret'?")
