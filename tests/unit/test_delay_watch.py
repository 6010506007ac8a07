"""A process whose handlers take the CPU from its requests says so, and what to do."""

import logging

import pytest

from onceward.operate.delay_watch import (
    DELAYED_SECONDS,
    WARNING_INTERVAL_SECONDS,
    WINDOW,
    DelayWatch,
    Sample,
)
from onceward.runtime.clock import SystemClock
from tests.factories import FakeClock


def warnings(
    caplog: pytest.LogCaptureFixture,
    *,
    delay_seconds: float = 0.1,
    delayed: int = WINDOW,
    cpu_share: float = 1.0,
    count: int = WINDOW,
    is_single_process: bool = False,
) -> list[str]:
    """Return the warnings about samples a second apart, the last of which were delayed."""
    watch = DelayWatch(FakeClock(), is_single_process=is_single_process)
    with caplog.at_level(logging.WARNING, "onceward.workers"):
        for number in range(count):
            is_delayed = number % WINDOW >= WINDOW - delayed
            delay = delay_seconds if is_delayed else 0.0
            watch.add(Sample(delay, float(number), cpu_share * number))
    return caplog.messages


def test_the_delay_is_named_with_the_commands_to_run(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = warnings(caplog)
    assert "often wait for 100 ms" in message
    assert "`onceward serve app.py --workers 0` receives" in message
    assert caplog.records[0].seconds == 0.1  # type: ignore[attr-defined]


def test_a_single_long_delay_is_not_the_one_that_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = DelayWatch(FakeClock(), is_single_process=False)
    for number in range(WINDOW):
        watch.add(Sample(0.1 if number else 9.0, float(number), float(number)))
    (message,) = caplog.messages
    assert "often wait for 100 ms" in message


def test_on_sqlite_the_advice_is_another_database(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = warnings(caplog, is_single_process=True)
    assert "SQLite supports one process: use PostgreSQL" in message


UNREPORTED: list[dict[str, float]] = [
    {"count": WINDOW - 1},  # not for long enough
    {"cpu_share": 0.7},  # the machine is busy, not this process
    {"delay_seconds": DELAYED_SECONDS},
    {"delayed": WINDOW // 4 - 1},
]


def test_a_short_or_a_foreign_delay_is_not_reported(
    caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for case in UNREPORTED:
        with subtests.test(case=case):
            caplog.clear()
            assert warnings(caplog, **case) == []  # type: ignore[arg-type]


def test_a_quarter_of_the_samples_is_a_pattern(caplog: pytest.LogCaptureFixture) -> None:
    assert len(warnings(caplog, delayed=WINDOW // 4)) == 1


def test_the_warning_is_repeated_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    interval = int(WARNING_INTERVAL_SECONDS)
    assert len(warnings(caplog, count=WINDOW + interval - 1)) == 1
    caplog.clear()
    assert len(warnings(caplog, count=WINDOW + interval)) == 2


async def test_a_free_event_loop_has_hardly_any_delay() -> None:
    watch = DelayWatch(SystemClock(), is_single_process=False)
    await watch.take_sample()
    (sample,) = watch._samples
    assert 0 <= sample.delay_seconds < 1
    assert sample.cpu_seconds > 0
