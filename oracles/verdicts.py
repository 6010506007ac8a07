"""What Onceward says of an oracle's requests, beside what the oracle says."""

from __future__ import annotations

import time

import pytest

import onceward
from oracles import npm
from oracles.keys import Keys
from oracles.oracle import Oracle, Request


def need(oracle: Oracle) -> None:
    """Skip a test, by name, where the library is not there."""
    if not oracle.is_npm:
        pytest.importorskip(oracle.module or oracle.package.replace("-", "_"))
    elif not npm.is_installed(oracle.package):
        pytest.skip(f"npm's {oracle.package} is not installed")


def signed(oracle: Oracle, keys: Keys, age_seconds: float = 0) -> Request:
    """The oracle's request as Onceward signs it."""
    asked = oracle.request
    verifies = onceward.sign(
        oracle.preset,
        secret=keys.private,
        headers=asked.headers,
        body=asked.body,
        url=asked.url,
        method=asked.method,
        now=time.time() - age_seconds,
        scheme=oracle.scheme,
    )
    return Request(
        headers=verifies.headers, body=verifies.body, url=verifies.url, method=verifies.method
    )


def is_genuine(oracle: Oracle, request: Request, keys: Keys, age_seconds: float = 0) -> bool:
    """What Onceward says of a request."""
    try:
        onceward.verify(
            oracle.preset,
            secret=keys.public,
            headers=request.headers,
            body=request.body,
            url=request.url,
            method=request.method,
            now=time.time() - age_seconds,
            scheme=oracle.scheme,
        )
    except onceward.SignatureRejected:
        return False
    return True


def verdicts(oracle: Oracle, request: Request, keys: Keys) -> dict[str, bool]:
    """What both say of a request."""
    return {
        "library": oracle.accepts(request, keys.public),
        "Onceward": is_genuine(oracle, request, keys),
    }


ACCEPTED = {"library": True, "Onceward": True}
REFUSED = {"library": False, "Onceward": False}
