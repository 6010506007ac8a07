"""Attacks on a running service, in a short form. See prove/attacks.py."""

import time

import pytest

from prove.attacks import (
    ATTACKS,
    MAX_GROWTH_MEGABYTES,
    SMALL,
    AttackResult,
    AttacksResult,
    _judge,
    run_attacks,
)
from prove.honest_sender import HonestSender, Latency, Sample


def test_no_attack_makes_the_service_grow_or_delays_others() -> None:
    result = run_attacks(SMALL)
    findings = {attack.name: attack.findings for attack in result.attacks if attack.findings}
    assert not findings
    assert [attack.name for attack in result.attacks] == list(ATTACKS)
    assert result.calm.count > 10


# The judgement itself.


@pytest.mark.parametrize(
    ("growth", "honest", "finding"),
    [
        (MAX_GROWTH_MEGABYTES + 1, Latency(100, 1.0, 2.0, 0), "the service grew by 51 MB"),
        (1.0, Latency(100, 1.0, 300.0, 0), "the honest sender waited 300 ms (p99)"),
        (1.0, Latency(100, 1.0, 2.0, 3), "3 honest requests failed"),
    ],
)
def test_an_effect_of_an_attack_is_a_finding(growth: float, honest: Latency, finding: str) -> None:
    attack = AttackResult("test", growth_megabytes=growth, honest=honest)
    _judge(attack, 250.0)
    assert attack.findings == [finding]
    assert not AttacksResult(SMALL, attacks=[attack]).is_green


def test_the_limit_follows_a_slow_machine() -> None:
    limits = [AttacksResult(SMALL, Latency(9, 1.0, p99, 0)).max_p99_ms for p99 in (5.0, 400.0)]
    assert limits == [SMALL.max_p99_ms, 4000.0]


def test_a_request_without_a_response_counts_with_its_delay() -> None:
    samples = [Sample(0.0, 0.001, 202)] * 98 + [Sample(0.0, 15.0, 0)] * 2
    assert Latency.of(samples) == Latency(100, 1.0, 15_000.0, 2)


def test_the_honest_sender_reports_a_service_that_is_gone() -> None:
    with HonestSender(port=1, per_second=100) as sender:
        time.sleep(0.2)  # it sends at a steady rate
    latency = sender.between(0.0, float("inf"))
    assert latency.count == latency.failures > 5
