"""One timer for many waits: each ends in time, and none that is done is ended."""

import asyncio

from onceward.runtime.deadlines import Deadlines

Wait = asyncio.Future[None]


def wait() -> Wait:
    return asyncio.get_running_loop().create_future()


async def test_what_is_not_done_in_time_is_ended_once() -> None:
    expired: list[Wait] = []
    deadlines = Deadlines(0.05, expired.append)
    early, late = wait(), wait()
    deadlines.add(early)
    deadlines.add(late)
    early.set_result(None)
    await asyncio.sleep(0.2)
    assert expired == [late]


async def test_each_has_its_own_time() -> None:
    loop = asyncio.get_running_loop()
    expired: list[float] = []
    deadlines: Deadlines[Wait] = Deadlines(0.1, lambda _: expired.append(loop.time() - began))
    began = loop.time()
    deadlines.add(wait())
    await asyncio.sleep(0.06)
    deadlines.add(wait())
    await asyncio.sleep(0.04)
    assert len(expired) <= 1
    await asyncio.sleep(0.3)
    assert len(expired) == 2
    assert expired[0] >= 0.1
    assert expired[1] >= 0.16


async def test_it_waits_again_after_a_pause() -> None:
    expired: list[Wait] = []
    deadlines = Deadlines(0.02, expired.append)
    waits = [wait() for _ in range(3)]
    for one in waits:
        deadlines.add(one)
        await asyncio.sleep(0.1)
    assert expired == waits


async def test_a_closed_one_ends_nothing() -> None:
    expired: list[Wait] = []
    deadlines = Deadlines(0.02, expired.append)
    deadlines.add(wait())
    deadlines.close()
    await asyncio.sleep(0.1)
    assert expired == []


async def test_what_is_done_is_not_held() -> None:
    expired: list[Wait] = []
    deadlines = Deadlines(60.0, expired.append)
    for _ in range(1000):
        done = wait()
        deadlines.add(done)
        done.set_result(None)
    assert len(deadlines._waits) == 1
    deadlines.close()
