"""Verify: a signed request of 600 bytes, beside the bare digest of the same bytes."""

import hmac
import time
from collections.abc import Callable
from functools import partial

from bench.deliveries import BODY_BYTES
from bench.field import OURS
from bench.results import Sample
from bench.run import Run, Step
from onceward.sources.presets import PRESETS
from onceward.sources.request import Headers, Request

BARE = "bare"
CASE = "Stripe"
SECRET = b"whsec_a_secret_that_nobody_else_has"
NOW = 1_760_000_000
AT_ONCE = 200
TURNS = 50


def steps(run: Run) -> list[Step]:
    """Each round has both, in short turns."""
    return [
        Step(f"verify {number + 1}", 1.0, partial(_step, number))
        for number in range(run.options.rounds)
    ]


def _step(number: int) -> list[Sample]:
    body = b'{"id":"evt_1","type":"payment.made"}'.ljust(BODY_BYTES)
    content = b"%d.%b" % (NOW, body)
    signature = hmac.digest(SECRET, content, "sha256").hex()
    headers = Headers(
        [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"stripe-signature", f"t={NOW},v1={signature}".encode()),
        ]
    )
    scheme = PRESETS["stripe"].scheme()
    keys = scheme.keys(SECRET)
    both = {
        OURS: lambda: scheme.verify(keys, Request(headers, body), NOW),
        BARE: lambda: hmac.digest(SECRET, content, "sha256"),
    }
    shortest = dict.fromkeys(both, float("inf"))
    for _ in range(TURNS):  # in turns, and the best of each: the machine's speed changes
        for name, act in both.items():
            shortest[name] = min(shortest[name], _seconds(act))
    return [Sample(name, CASE, number, {"us": best * 1e6}) for name, best in shortest.items()]


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(AT_ONCE):
        act()
    return (time.perf_counter() - started) / AT_ONCE
