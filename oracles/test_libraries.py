"""Each library and Onceward decide alike on the same request."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from oracles.comparison import (
    BOTH_ACCEPT,
    BOTH_REJECT,
    compare,
    onceward_accepts,
    sign_with_onceward,
    skip_unless_installed,
)
from oracles.keys import Keys
from oracles.libraries import FILE, VERIFIERS, libraries_by_preset
from oracles.verifier import BODY_VARIANTS, Request, Verifier


def for_each(verifiers: Iterable[Verifier]) -> Any:
    """Run a test with each of the verifiers that are installed."""
    params = [pytest.param(verifier, id=verifier.name) for verifier in verifiers]
    return pytest.mark.parametrize("verifier", params, indirect=True)


@pytest.fixture
def verifier(request: pytest.FixtureRequest) -> Verifier:
    param: Verifier = request.param
    skip_unless_installed(param)
    return param


def genuine_request(verifier: Verifier, keys: Keys) -> Request:
    """Return a request that both accept."""
    request = sign_with_onceward(verifier, keys)
    assert compare(verifier, request, keys) == BOTH_ACCEPT
    return request


@for_each(verifier for verifier in VERIFIERS if verifier.sign)
def test_onceward_accepts_what_the_library_signs(verifier: Verifier) -> None:
    keys = verifier.make_keys()
    assert verifier.sign is not None
    request = verifier.sign(verifier.request, keys.private)
    assert verifier.verify(request, keys.public)
    assert onceward_accepts(verifier, request, keys)


@for_each(VERIFIERS)
def test_the_library_accepts_what_onceward_signs(verifier: Verifier) -> None:
    keys = verifier.make_keys()
    request = sign_with_onceward(verifier, keys)
    assert onceward_accepts(verifier, request, keys)
    assert verifier.verify(request, keys.public)


@for_each(verifier for verifier in VERIFIERS if verifier.accepts_any_body)
def test_a_body_is_signed_byte_for_byte(verifier: Verifier) -> None:
    keys = verifier.make_keys()
    for body in BODY_VARIANTS:
        variant = verifier.with_body(body)
        assert compare(variant, sign_with_onceward(variant, keys), keys) == BOTH_ACCEPT


@for_each(verifier for verifier in VERIFIERS if verifier.tamper)
def test_both_reject_a_tampered_request(verifier: Verifier) -> None:
    keys = verifier.make_keys()
    assert verifier.tamper is not None
    request = genuine_request(verifier, keys)
    tampered = verifier.tamper(request)
    assert tampered != request
    assert compare(verifier, tampered, keys) == BOTH_REJECT


@for_each(VERIFIERS)
def test_both_reject_another_secret(verifier: Verifier) -> None:
    request = genuine_request(verifier, verifier.make_keys())
    assert compare(verifier, request, verifier.make_keys()) == BOTH_REJECT


@for_each(verifier for verifier in VERIFIERS if verifier.stale_seconds)
def test_both_reject_a_stale_request(verifier: Verifier) -> None:
    keys = verifier.make_keys()
    assert verifier.stale_seconds is not None
    genuine_request(verifier, keys)
    stale = sign_with_onceward(verifier, keys, verifier.stale_seconds)
    assert onceward_accepts(verifier, stale, keys, verifier.stale_seconds)
    assert compare(verifier, stale, keys) == BOTH_REJECT


def test_the_list_of_libraries_is_up_to_date() -> None:
    message = "run python -m oracles.libraries"
    assert json.loads(FILE.read_bytes()) == libraries_by_preset(), message
