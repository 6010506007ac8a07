"""Onceward's decision on a request, next to a library's."""

from __future__ import annotations

import time

import pytest

import onceward
from oracles import npm
from oracles.keys import Keys
from oracles.verifier import Request, Verifier

BOTH_ACCEPT = {"library": True, "Onceward": True}
BOTH_REJECT = {"library": False, "Onceward": False}


def skip_unless_installed(verifier: Verifier) -> None:
    """Skip the test, naming the library, unless it is installed."""
    if not verifier.is_npm:
        pytest.importorskip(verifier.module or verifier.package.replace("-", "_"))
    elif not npm.is_installed(verifier.package):
        pytest.skip(f"{verifier.package} (npm) is not installed")


def sign_with_onceward(verifier: Verifier, keys: Keys, age_seconds: float = 0) -> Request:
    """Return the verifier's request, signed by Onceward."""
    request = verifier.request
    signed = onceward.sign(
        verifier.preset,
        secret=keys.private,
        headers=request.headers,
        body=request.body,
        url=request.url,
        method=request.method,
        now=time.time() - age_seconds,
        scheme=verifier.scheme,
    )
    return Request(headers=signed.headers, body=signed.body, url=signed.url, method=signed.method)


def onceward_accepts(
    verifier: Verifier, request: Request, keys: Keys, age_seconds: float = 0
) -> bool:
    """Return whether Onceward accepts the request."""
    try:
        onceward.verify(
            verifier.preset,
            secret=keys.public,
            headers=request.headers,
            body=request.body,
            url=request.url,
            method=request.method,
            now=time.time() - age_seconds,
            scheme=verifier.scheme,
        )
    except onceward.SignatureRejected:
        return False
    return True


def compare(verifier: Verifier, request: Request, keys: Keys) -> dict[str, bool]:
    """Return both decisions: BOTH_ACCEPT, BOTH_REJECT or a difference."""
    return {
        "library": verifier.accepts(request, keys.public),
        "Onceward": onceward_accepts(verifier, request, keys),
    }
