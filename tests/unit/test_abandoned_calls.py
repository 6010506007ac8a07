"""Abandoned calls pause a handler at the limit, and the log repeats it once a minute."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from onceward.work.definition.handlers import make_handler
from onceward.work.running.abandoned_calls import REPORT_INTERVAL_SECONDS, AbandonedCalls
from tests.factories import FakeClock


def send() -> None:
    """Do nothing."""


async def send_async() -> None:
    """Do nothing."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def calls(clock: FakeClock) -> AbandonedCalls:
    handlers = {name: make_handler(send, ["a"], name=name) for name in ("send", "other")}
    return AbandonedCalls(handlers, limit=2, clock=clock)


def test_a_handler_is_paused_from_the_limit_on_and_resumes_below_it(
    calls: AbandonedCalls, clock: FakeClock
) -> None:
    resumed: list[int] = []
    calls.on_resume = lambda: resumed.append(1)
    calls.add("send")
    calls.add("other")
    assert (calls.paused, calls.paused_since) == (set(), {})
    calls.add("send")
    since = datetime.fromtimestamp(clock.seconds, UTC)
    clock.seconds += 60
    calls.add("send")
    assert calls.paused == {"send"}
    assert calls.paused_since == {"send": since}
    calls.remove("send")
    assert (calls.paused, resumed) == ({"send"}, [])
    calls.remove("send")
    assert (calls.paused, calls.paused_since, resumed) == (set(), {}, [1])
    calls.remove("send")
    assert resumed == [1]


def test_a_paused_handler_is_reported_once_a_minute(
    calls: AbandonedCalls, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    calls.report()
    calls.add("send")
    calls.add("send")
    for _ in range(3):
        calls.report()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert vars(caplog.records[0])["handler"] == "send"
    assert vars(caplog.records[0])["count"] == 2
    clock.seconds += REPORT_INTERVAL_SECONDS
    calls.report()
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
    calls.remove("send")
    assert caplog.records[-1].levelname == "INFO"
    assert "resumes" in caplog.messages[-1]


def test_a_pause_that_was_not_reported_ends_without_a_line(
    calls: AbandonedCalls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    calls.add("send")
    calls.add("send")
    calls.remove("send")
    assert caplog.records == []


def test_only_a_reported_pause_has_a_line_about_its_end(
    calls: AbandonedCalls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    calls.add("send")
    calls.add("send")
    calls.report()
    calls.remove("send")
    calls.add("send")
    calls.remove("send")
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


@pytest.mark.parametrize(
    ("function", "advice"),
    [(send, "Set timeouts"), (send_async, "Let it end when it is cancelled")],
)
def test_the_advice_fits_the_kind_of_handler(
    function: Callable[..., object],
    advice: str,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    handlers = {"send": make_handler(function, ["a"], name="send")}
    calls = AbandonedCalls(handlers, limit=1, clock=clock)
    calls.add("send")
    calls.report()
    assert advice in caplog.messages[0]
