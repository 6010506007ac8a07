"""Limits on the CPU time of a call, for tests that must hold on a busy machine."""

import gc
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")

TRIES = 3
GROWTH = 8
MAX_TIMES_LINEAR = 3.0


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call; fail the test if its fastest run takes longer than `seconds`."""
    times = []
    for _ in range(TRIES):
        result, taken = timed(call)
        times.append(taken)
        if taken < seconds:
            return result
    pytest.fail(f"the fastest of {TRIES} runs took {min(times):.2f} s, not less than {seconds} s")


def assert_linear(call: Callable[[int], object], size: int) -> None:
    """Fail the test if the time of a call grows faster than the size that it gets.

    With the square of the size, it would grow `GROWTH` times as fast.
    """
    small, large = [], []
    for _ in range(TRIES):
        small.append(timed(lambda: call(size))[1])
        large.append(timed(lambda: call(size * GROWTH))[1])
        ratio = min(large) / min(small)
        if ratio < GROWTH * MAX_TIMES_LINEAR:
            return
    pytest.fail(f"{GROWTH} times the size takes {ratio:.0f} times the CPU time")


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call and its CPU time, in seconds.

    The garbage collector is off: it would walk every object that earlier tests left behind.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        started = time.thread_time()
        result = call()
        return result, time.thread_time() - started
    finally:
        if was_enabled:
            gc.enable()
