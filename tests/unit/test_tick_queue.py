"""Calls spread over the iterations of the event loop."""

import asyncio
import itertools
from collections.abc import Callable

from onceward.http.server.context import REQUESTS_PER_TICK
from onceward.http.server.tick_queue import TickQueue
from tests.connections import iterations

MANY = 5 * REQUESTS_PER_TICK + 1


async def test_other_callbacks_run_between_the_calls_of_a_burst() -> None:
    done: list[int] = []
    turns = TickQueue(limit=REQUESTS_PER_TICK)
    seen: list[int] = []

    def count() -> None:
        seen.append(len(done))
        if seen[-1] < MANY:
            asyncio.get_running_loop().call_soon(count)

    for number in range(MANY):
        turns.add(lambda number=number: done.append(number))  # type: ignore[misc] # binds the number
    count()
    await iterations(MANY)

    assert done == list(range(MANY))
    per_iteration = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert max(per_iteration) == REQUESTS_PER_TICK


async def test_a_lone_call_runs_in_the_next_iteration() -> None:
    done: list[str] = []
    TickQueue().add(lambda: done.append("lone"))
    await iterations(1)
    assert done == ["lone"]


async def test_a_failing_call_does_not_block_the_ones_behind_it() -> None:
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("the response cannot be sent")

    turns = TickQueue(limit=REQUESTS_PER_TICK)
    calls: list[Callable[[], object]] = [lambda: done.append("before"), fail]
    calls += [lambda: done.append("after"), fail, lambda: done.append("last")]
    for call in calls:
        turns.add(call)
    await iterations(10)
    turns.add(lambda: done.append("later"))
    await iterations(1)

    assert done == ["before", "after", "last", "later"]
    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]
