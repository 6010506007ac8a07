"""Guessed tokens block their client for a short time, within bounded memory."""

import pytest

from onceward.http import throttle as throttle_module
from onceward.http.addresses import network_of
from onceward.http.throttle import (
    FAILURES_BEFORE_BLOCK,
    MAX_CLIENTS,
    REMEMBERED_TOKENS,
    Throttle,
)
from tests.factories import FakeClock

ATTACKER, OTHER = "203.0.113.7", "203.0.113.8"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def throttle(clock: FakeClock) -> Throttle:
    return Throttle(clock)


def guess(throttle: Throttle, address: str, count: int, prefix: str = "") -> None:
    for number in range(count):
        assert throttle.add_failure(address, f"{prefix}{number}".encode()) == 0


def test_a_few_wrong_tokens_have_no_consequence(throttle: Throttle) -> None:
    guess(throttle, ATTACKER, FAILURES_BEFORE_BLOCK - 1)
    assert not throttle.is_active
    assert throttle.remaining_seconds(ATTACKER) == 0
    assert throttle.failures(ATTACKER) == FAILURES_BEFORE_BLOCK - 1


def test_each_further_guess_doubles_the_block_up_to_a_minute(
    throttle: Throttle, clock: FakeClock
) -> None:
    guess(throttle, ATTACKER, FAILURES_BEFORE_BLOCK - 1)
    blocks = []
    for number in range(9):
        throttle.add_failure(ATTACKER, b"guess %d" % number)
        blocks.append(throttle.remaining_seconds(ATTACKER))
        active = [throttle.is_active]
        clock.seconds += blocks[-1]
        assert [*active, throttle.is_active] == [True, False]
        assert throttle.remaining_seconds(ATTACKER) == 0
    assert blocks == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_block_after_thousands_of_guesses_lasts_a_minute(throttle: Throttle) -> None:
    guess(throttle, ATTACKER, 3_000)
    assert throttle.remaining_seconds(ATTACKER) == 60


def test_a_block_is_of_one_client(throttle: Throttle) -> None:
    guess(throttle, ATTACKER, FAILURES_BEFORE_BLOCK)
    assert throttle.remaining_seconds(ATTACKER) == 1
    assert throttle.remaining_seconds(OTHER) == 0


def test_a_short_block_does_not_end_a_longer_one(throttle: Throttle, clock: FakeClock) -> None:
    guess(throttle, ATTACKER, FAILURES_BEFORE_BLOCK + 3)
    guess(throttle, OTHER, FAILURES_BEFORE_BLOCK)
    clock.seconds += 2
    assert throttle.remaining_seconds(OTHER) == 0
    assert throttle.remaining_seconds(ATTACKER) == 6
    assert throttle.is_active


def test_the_same_wrong_token_is_refused_by_itself_and_blocks_nothing(throttle: Throttle) -> None:
    waits = [throttle.add_failure(ATTACKER, b"outdated") for _ in range(FAILURES_BEFORE_BLOCK + 8)]
    assert waits == [0] * FAILURES_BEFORE_BLOCK + [1, 2, 4, 8, 16, 32, 60, 60]
    assert not throttle.is_active
    assert throttle.failures(ATTACKER) == len(waits)


def test_the_last_wrong_tokens_are_remembered(throttle: Throttle) -> None:
    guess(throttle, ATTACKER, REMEMBERED_TOKENS + 1)
    before = throttle.remaining_seconds(ATTACKER)
    for number in range(1, REMEMBERED_TOKENS + 1):
        assert throttle.add_failure(ATTACKER, b"%d" % number) > 0
    assert throttle.remaining_seconds(ATTACKER) == before
    assert throttle.add_failure(ATTACKER, b"0") == 0  # forgotten: it counts as a guess
    assert throttle.remaining_seconds(ATTACKER) > before


def test_a_client_is_forgotten_after_a_quiet_time(throttle: Throttle, clock: FakeClock) -> None:
    guess(throttle, ATTACKER, FAILURES_BEFORE_BLOCK + 3)
    clock.seconds += throttle_module.FORGET_SECONDS + 1
    guess(throttle, ATTACKER, FAILURES_BEFORE_BLOCK - 1, "new")
    assert not throttle.is_active
    assert throttle.failures(ATTACKER) == FAILURES_BEFORE_BLOCK - 1


def test_other_addresses_do_not_displace_a_blocked_client(throttle: Throttle) -> None:
    guess(throttle, ATTACKER, FAILURES_BEFORE_BLOCK)
    for number in range(MAX_CLIENTS + 100):
        throttle.add_failure(f"2001:db8:{number:x}::1", b"one guess")
    assert throttle.failures(ATTACKER) == FAILURES_BEFORE_BLOCK
    assert throttle.remaining_seconds(ATTACKER) == 1


def test_the_memory_is_bounded(throttle: Throttle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle_module, "MAX_CLIENTS", 10)
    for number in range(50):
        guess(throttle, f"2001:db8:{number:x}::1", FAILURES_BEFORE_BLOCK + 20)
        guess(throttle, f"2001:db9:{number:x}::1", 1)
    assert len(throttle._blocked) == len(throttle._suspects) == 10
    (*_, newest) = throttle._blocked.values()
    assert len(newest.tokens) == throttle_module.REMEMBERED_TOKENS
    assert throttle.failures("2001:db8:31::1") == FAILURES_BEFORE_BLOCK + 20
    assert throttle.failures("2001:db8:0::1") == 0


SAME_CLIENTS: list[tuple[str, str]] = [
    ("2001:db8:1:2::1", "2001:DB8:1:2:ffff:ffff:ffff:ffff"),
    ("::ffff:203.0.113.7", "203.0.113.7"),
    ("fe80::1%eth0", "fe80::2"),
    ("", "/run/onceward.sock"),
    ("testclient", "999.1.1.1"),
]


def test_addresses_of_one_subscriber_are_one_client(subtests: pytest.Subtests) -> None:
    for address, same in SAME_CLIENTS:
        with subtests.test(address=address):
            assert network_of(address) == network_of(same)


OTHER_CLIENTS: list[tuple[str, str]] = [
    ("2001:db8:1:2::1", "2001:db8:1:3::1"),
    ("203.0.113.7", "203.0.113.8"),
    ("::1", "127.0.0.1"),
    ("", "127.0.0.1"),
    ("::7", "0.0.0.7"),
]


def test_other_networks_are_other_clients(subtests: pytest.Subtests) -> None:
    for address, other in OTHER_CLIENTS:
        with subtests.test(address=address):
            assert network_of(address) != network_of(other)
