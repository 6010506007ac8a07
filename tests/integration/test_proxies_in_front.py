"""Requests through nginx and HAProxy, in a short form. See prove/proxies_in_front.py."""

import pytest

from prove.in_process import Message
from prove.proxies_in_front import PROXIES, Forwarded, ProxyKind, check_proxy, compare, read_log

SEED = 20_261_119
NGINX, HAPROXY = PROXIES
BY_NAME = pytest.mark.parametrize("kind", PROXIES, ids=lambda kind: kind.name)


@BY_NAME
def test_nothing_is_smuggled_past_a_proxy(kind: ProxyKind) -> None:
    if kind.executable is None:
        pytest.skip(f"{kind.name} is not installed")
    result = check_proxy(kind, SEED, 400)
    assert not result.findings
    assert result.received > 100


@BY_NAME
def test_a_proxy_that_is_not_installed_is_skipped(
    kind: ProxyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    result = check_proxy(kind, SEED, 1)
    assert result.skipped == f"{kind.name} is not installed"
    assert not result.findings


def message(*ids: bytes, method: bytes = b"POST") -> Message:
    return Message(method, b"/a", b"", tuple((b"x-request-id", value) for value in ids))


FORWARDED = {b"1": Forwarded(b"POST", 200), b"2": Forwarded(b"POST", 400)}


DIFFERENCES: list[tuple[list[Message], str]] = [
    ([message(b"1"), message()], "received with 0 ids"),
    ([message(b"1"), message(b"1", b"2")], "received with 2 ids"),
    ([message(b"1"), message(b"1")], "received 2 times"),
    ([message(b"1"), message(b"3")], "received, but never forwarded"),
    ([message(b"1", method=b"GET")], "forwarded as b'POST'"),
    ([], "answered, but never received"),
]


def test_a_difference_between_the_sides_is_found(subtests: pytest.Subtests) -> None:
    for messages, finding in DIFFERENCES:
        with subtests.test(finding):
            (found,) = compare("nginx", FORWARDED, messages).findings
            assert found.startswith(finding)


def test_a_refused_request_need_not_be_received() -> None:
    result = compare("nginx", FORWARDED, [message(b"1")])
    assert (result.findings, result.refused, result.received) == ([], 1, 1)


def test_the_logs_tell_which_requests_were_forwarded() -> None:
    assert read_log(NGINX, "1 200 POST 200\n2 400 POST 400\n3 400 - -\nnoise\n") == FORWARDED
    lines = "1 200 POST inbox\n2 400 POST inbox\n3 400 <BADREQ> <NOSRV>\n"
    assert read_log(HAPROXY, lines) == FORWARDED
