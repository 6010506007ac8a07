"""The clock of the operating system."""

import time

import pytest

from onceward.runtime.clock import SystemClock


def test_boottime_goes_on_while_the_machine_is_suspended() -> None:
    """A call whose process was frozen is not made after its deadline."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    assert SystemClock().boottime() == pytest.approx(time.clock_gettime(clock), abs=1)
