"""Each library says the same as Onceward of the same request."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from oracles.covered import FILE, ORACLES, covered
from oracles.keys import Keys
from oracles.oracle import RENDERINGS, Oracle, Request
from oracles.verdicts import ACCEPTED, REFUSED, is_genuine, need, signed, verdicts


def among(oracles: Iterable[Oracle]) -> Any:
    """Run a test with each of the oracles, as far as they are installed."""
    params = [pytest.param(oracle, id=oracle.name) for oracle in oracles]
    return pytest.mark.parametrize("oracle", params, indirect=True)


@pytest.fixture
def oracle(request: pytest.FixtureRequest) -> Oracle:
    found: Oracle = request.param
    need(found)
    return found


def genuine(oracle: Oracle, keys: Keys) -> Request:
    """A request that both take for genuine."""
    verifies = signed(oracle, keys)
    assert verdicts(oracle, verifies, keys) == ACCEPTED
    return verifies


@among(it for it in ORACLES if it.signs)
def test_what_the_library_signs_is_genuine_to_onceward(oracle: Oracle) -> None:
    keys = oracle.keys()
    assert oracle.signs is not None
    request = oracle.signs(oracle.request, keys.private)
    assert oracle.verifies(request, keys.public)
    assert is_genuine(oracle, request, keys)


@among(ORACLES)
def test_what_onceward_signs_is_genuine_to_the_library(oracle: Oracle) -> None:
    keys = oracle.keys()
    request = signed(oracle, keys)
    assert is_genuine(oracle, request, keys)
    assert oracle.verifies(request, keys.public)


@among(it for it in ORACLES if it.takes_any_body)
def test_a_body_is_signed_byte_for_byte(oracle: Oracle) -> None:
    keys = oracle.keys()
    asked = [oracle.asked_about(body) for body in RENDERINGS]
    assert [verdicts(it, signed(it, keys), keys) for it in asked] == [ACCEPTED] * len(asked)


@among(it for it in ORACLES if it.altered)
def test_both_refuse_what_was_changed(oracle: Oracle) -> None:
    keys = oracle.keys()
    assert oracle.altered is not None
    request = genuine(oracle, keys)
    changed = oracle.altered(request)
    assert changed != request
    assert verdicts(oracle, changed, keys) == REFUSED


@among(ORACLES)
def test_both_refuse_what_was_signed_with_another_secret(oracle: Oracle) -> None:
    request = genuine(oracle, oracle.keys())
    assert verdicts(oracle, request, oracle.keys()) == REFUSED


@among(it for it in ORACLES if it.stale_seconds)
def test_both_refuse_what_is_too_old(oracle: Oracle) -> None:
    keys = oracle.keys()
    assert oracle.stale_seconds is not None
    genuine(oracle, keys)
    stale = signed(oracle, keys, oracle.stale_seconds)
    assert is_genuine(oracle, stale, keys, oracle.stale_seconds)
    assert verdicts(oracle, stale, keys) == REFUSED


def test_the_list_of_what_is_covered_is_up_to_date() -> None:
    assert json.loads(FILE.read_bytes()) == covered(), "run python -m oracles.covered"
