"""One timer for many waits: each expires in time, and finished waits never do."""

import asyncio

from onceward.runtime.deadlines import Deadlines

Wait = asyncio.Future[None]


def wait() -> Wait:
    return asyncio.get_running_loop().create_future()


async def test_an_unfinished_wait_expires_once() -> None:
    expired: list[Wait] = []
    deadlines = Deadlines(0.05, expired.append)
    early, late = wait(), wait()
    deadlines.add(early)
    deadlines.add(late)
    early.set_result(None)
    await asyncio.sleep(0.2)
    assert expired == [late]


async def test_each_wait_has_its_own_deadline() -> None:
    loop = asyncio.get_running_loop()
    expired: list[float] = []
    deadlines: Deadlines[Wait] = Deadlines(0.1, lambda _: expired.append(loop.time() - started))
    started = loop.time()
    deadlines.add(wait())
    await asyncio.sleep(0.06)
    deadlines.add(wait())
    await asyncio.sleep(0.04)
    assert len(expired) <= 1
    await asyncio.sleep(0.3)
    assert len(expired) == 2
    assert expired[0] >= 0.1
    assert expired[1] >= 0.16


async def test_deadlines_work_again_after_a_pause() -> None:
    expired: list[Wait] = []
    deadlines = Deadlines(0.02, expired.append)
    waits = [wait() for _ in range(3)]
    for each in waits:
        deadlines.add(each)
        await asyncio.sleep(0.1)
    assert expired == waits


async def test_nothing_expires_after_close() -> None:
    expired: list[Wait] = []
    deadlines = Deadlines(0.02, expired.append)
    deadlines.add(wait())
    deadlines.close()
    await asyncio.sleep(0.1)
    assert expired == []


async def test_finished_waits_do_not_pile_up() -> None:
    expired: list[Wait] = []
    deadlines = Deadlines(60.0, expired.append)
    for _ in range(1000):
        finished = wait()
        deadlines.add(finished)
        finished.set_result(None)
    assert len(deadlines._waits) == 1
    deadlines.close()
