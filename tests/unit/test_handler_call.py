"""A handler's coroutine gets what its task gets: results, errors and the cancellation."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from onceward.work.running.handler_call import HandlerCall
from onceward.work.running.loop_watch import LoopWatch
from tests.factories import FakeClock


def call_of(function: Callable[[], Coroutine[Any, Any, None]]) -> HandlerCall:
    watch = LoopWatch("send_mail", FakeClock(), label="handler 'send_mail' (app.py:12)")
    return HandlerCall(function, {}, is_async=True, loop_watch=watch)


async def test_a_handler_goes_on_after_an_error_that_it_caught() -> None:
    steps: list[str] = []

    async def send_mail() -> None:
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(refused.set_exception, OSError("no mail"))
        try:
            await refused
        except OSError as error:
            steps.append(str(error))
        await asyncio.sleep(0)
        steps.append("sent later")

    await call_of(send_mail).run()
    assert steps == ["no mail", "sent later"]


async def test_a_cancelled_handler_may_await_while_it_cleans_up() -> None:
    steps: list[str] = []
    started = asyncio.Event()

    async def send_mail() -> None:
        try:
            started.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            steps.append("cleaned up")
            raise

    task = asyncio.create_task(call_of(send_mail).run())
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert steps == ["cleaned up"]
