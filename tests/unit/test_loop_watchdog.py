"""A blocked event loop is named while it is blocked, with the line of the app."""

import asyncio
import time

import pytest

from onceward.cli import _loop_watchdog
from onceward.cli._loop_watchdog import LoopWatchdog
from onceward.runtime.clock import SystemClock
from tests.factories import FakeClock


async def test_a_blocked_event_loop_is_named_once_while_it_is_blocked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_loop_watchdog, "BLOCKED_SECONDS", 0.2)
    monkeypatch.setattr(_loop_watchdog, "_LOOK_SECONDS", 0.02)
    watchdog = LoopWatchdog(SystemClock())
    watchdog.start()
    await asyncio.sleep(0.3)
    assert not caplog.records
    time.sleep(0.6)  # noqa: ASYNC251 - blocks on purpose
    (record,) = caplog.records
    watchdog.close()
    assert record.levelname == "ERROR"
    assert "The event loop is blocked at tests/unit/test_loop_watchdog.py:" in record.getMessage()


def test_a_process_that_was_suspended_is_not_taken_for_blocked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    watchdog = LoopWatchdog(clock)
    clock.seconds += 600
    watchdog._look()
    clock.seconds += 1
    watchdog._look()
    assert not caplog.records
    clock.seconds += 2
    watchdog._look()
    clock.seconds += 2
    watchdog._look()
    assert "has not run for 5 s" in caplog.text
