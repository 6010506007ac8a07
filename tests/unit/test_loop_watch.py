"""A handler that blocks the event loop is named in a warning."""

import asyncio
import logging

import pytest

from onceward.work.running.handler_call import HandlerCall
from onceward.work.running.loop_watch import BLOCKED_SECONDS, WARNING_INTERVAL_SECONDS, LoopWatch
from tests.factories import FakeClock

LABEL = "handler 'send_mail' (app.py:12)"


def watch_of(handler: str, clock: FakeClock) -> LoopWatch:
    return LoopWatch(handler, clock, label=f"handler {handler!r} (app.py:12)")


async def run(clock: FakeClock, watch: LoopWatch, seconds: float, error: str = "") -> None:
    """Run a handler that blocks the loop for this long, between two awaits."""

    async def send_mail() -> None:
        await asyncio.sleep(0)
        clock.seconds += seconds
        if error:
            raise OSError(error)
        await asyncio.sleep(0)

    await HandlerCall(send_mail, {}, is_async=True, loop_watch=watch).run()


async def test_a_handler_that_returned_is_named_instead_of_its_line() -> None:
    async def send_mail() -> None: ...

    call = HandlerCall(
        send_mail, {}, is_async=True, loop_watch=LoopWatch("send_mail", FakeClock(), label=LABEL)
    )
    await call.run()
    assert call.location() == LABEL


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if (record.name, record.levelno) == ("onceward.work", logging.WARNING)
    ]


async def test_a_handler_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    await run(clock, watch_of("send_mail", clock), 6.0)
    (text,) = warnings(caplog)
    assert text == (
        f"{LABEL} blocked the event loop for 6.0 s; webhooks and other jobs waited. Use a sync "
        "`def` handler, which runs in a thread, or an async library."
    )
    fields = vars(caplog.records[0])
    assert (fields["handler"], fields["seconds"]) == ("send_mail", 6.0)


async def test_a_handler_that_blocks_and_raises_is_named(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with pytest.raises(OSError, match="no mail"):
        await run(clock, watch_of("send_mail", clock), 1.0, error="no mail")
    assert len(warnings(caplog)) == 1


async def test_a_short_step_causes_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(0.0)
    watch = watch_of("send_mail", clock)
    for _ in range(10):  # more than the limit in total
        await run(clock, watch, BLOCKED_SECONDS / 2)
    assert warnings(caplog) == []


async def test_time_in_an_await_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()

    async def wait() -> None:
        asyncio.get_running_loop().call_soon(setattr, clock, "seconds", clock.seconds + 6.0)
        await asyncio.sleep(0.01)

    watch = watch_of("send_mail", clock)
    await HandlerCall(wait, {}, is_async=True, loop_watch=watch).run()
    assert warnings(caplog) == []


async def test_one_warning_is_logged_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    watch, other = watch_of("send_mail", clock), watch_of("other", clock)
    for _ in range(3):
        await run(clock, watch, 1.0)
    await run(clock, other, 1.0)
    assert len(warnings(caplog)) == 2
    clock.seconds += WARNING_INTERVAL_SECONDS
    await run(clock, watch, 1.0)
    assert len(warnings(caplog)) == 3
