"""Verify: the signature of a 600-byte request, beside the bare digest of the same bytes."""

import hmac
import time
from collections.abc import Callable
from functools import partial

from bench.deliveries import BODY_BYTES
from bench.registry import ONCEWARD, POSTGRES
from bench.results import Sample
from bench.run import Run, Schedule, Trial
from onceward.sources.presets import PRESETS
from onceward.sources.request import Headers, Request

BARE = "bare"
CASE = "Stripe"
SECRET = b"whsec_a_secret_for_this_benchmark"
NOW = 1_760_000_000
CALLS = 200
REPEATS = 50


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan one trial a round, with one store only: verifying needs no database."""
    if run.options.store != POSTGRES:
        return []
    return [
        Trial(f"verify, round {number + 1}", 1.0, partial(_run_round, number))
        for number in range(schedule.rounds)
    ]


def _run_round(number: int) -> list[Sample]:
    """Alternate both sides, and take the fastest repeat of each: the rest is interference."""
    body = b'{"id":"evt_1","type":"payment.made"}'.ljust(BODY_BYTES)
    signed = b"%d.%b" % (NOW, body)
    signature = hmac.digest(SECRET, signed, "sha256").hex()
    headers = Headers(
        [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"stripe-signature", f"t={NOW},v1={signature}".encode()),
        ]
    )
    scheme = PRESETS["stripe"].scheme()
    keys = scheme.keys(SECRET)
    sides: dict[str, Callable[[], object]] = {
        ONCEWARD: lambda: scheme.verify(keys, Request(headers, body), NOW),
        BARE: lambda: hmac.digest(SECRET, signed, "sha256"),
    }
    fastest = dict.fromkeys(sides, float("inf"))
    for _ in range(REPEATS):
        for name, call in sides.items():
            fastest[name] = min(fastest[name], _seconds_per_call(call))
    return [Sample(name, CASE, number, {"us": best * 1e6}) for name, best in fastest.items()]


def _seconds_per_call(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS
