"""The outcome of one call: a function of any kind, its time, and a value that comes late."""

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from onceward.model.effects import MAX_RESULT_BYTES
from onceward.work.outside.outcomes import Expired, Raised, Returned, encode_result, run_call


async def post(number: int) -> int:
    await asyncio.sleep(0)
    return number


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as most decorators do: in a sync one that passes the coroutine on."""

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


def retried(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a blocking function in an async one."""

    @functools.wraps(function)
    async def wrapper(*arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    return wrapper


def blocking(number: int) -> int:
    return number


def forwards(number: int) -> Any:
    return post(number)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "async": post,
    "sync": blocking,
    "sync wrapper": traced(post),
    "async wrapper": retried(blocking),
    "partial": partial(post),
    "returns a coroutine": forwards,
}


async def test_a_function_of_any_kind_is_run_to_its_end(subtests: pytest.Subtests) -> None:
    for kind, function in FUNCTIONS.items():
        with subtests.test(kind):
            assert await run_call(partial(function, 5), 5.0) == Returned(5)


async def test_a_blocking_function_does_not_block_the_loop() -> None:
    caller = threading.current_thread()

    def where() -> bool:
        return threading.current_thread() is caller

    assert await run_call(partial(where), 5.0) == Returned(value=False)


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(5), TimeoutError()], ids=repr)
async def test_an_error_of_a_thread_is_raised_in_time(error: Exception) -> None:
    def fail() -> None:
        raise error

    async with asyncio.timeout(5):
        outcome = await run_call(partial(fail), 30.0)
    assert isinstance(outcome, Raised)
    if isinstance(error, StopIteration):
        assert isinstance(outcome.error, RuntimeError)  # a future refuses StopIteration
    else:
        assert outcome.error is error


async def test_a_thread_that_outlives_its_time_is_passed_on() -> None:
    left: list[asyncio.Future[object]] = []

    def slow() -> str:
        time.sleep(0.1)  # blocks its thread
        return "paid"

    assert await run_call(partial(slow), 0.01, left.append) == Expired()
    (thread,) = left
    assert await asyncio.wait_for(thread, 5) == "paid"


async def test_a_thread_whose_caller_is_cancelled_is_passed_on() -> None:
    left: list[asyncio.Future[object]] = []
    released = threading.Event()

    def slow() -> str:
        released.wait(5)
        return "paid"

    running = asyncio.create_task(run_call(partial(slow), 30.0, left.append))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    released.set()
    (thread,) = left
    assert await asyncio.wait_for(thread, 5) == "paid"


@pytest.mark.parametrize("text", ["x", "ü"])
def test_the_limit_of_a_result_is_in_bytes(text: str) -> None:
    fits = text * ((MAX_RESULT_BYTES - 2) // len(text.encode()))
    assert encode_result("effect", "charge", fits) == (f'"{fits}"', None)
    stored, fault = encode_result("effect", "charge", fits + text)
    assert stored is None
    assert "the limit is 65536" in str(fault)


def test_a_result_that_could_not_be_read_again_is_not_stored() -> None:
    stored, fault = encode_result("effect", "charge", msgspec.Raw(b"{"))
    assert stored is None
    assert "no JSON" in str(fault)
