"""One timer for many waits: each ends in time, and none that is over is ended."""

import asyncio

from onceward.deadlines import Deadlines


async def test_what_is_not_over_in_time_is_called_back_once() -> None:
    expired: list[str] = []
    deadlines = Deadlines(0.05)
    early = deadlines.add(lambda: expired.append("early"))
    deadlines.add(lambda: expired.append("late"))
    early.over = True
    await asyncio.sleep(0.2)
    assert expired == ["late"]


async def test_each_has_its_own_time() -> None:
    loop = asyncio.get_running_loop()
    expired: list[float] = []
    deadlines = Deadlines(0.1)
    began = loop.time()
    deadlines.add(lambda: expired.append(loop.time() - began))
    await asyncio.sleep(0.06)
    deadlines.add(lambda: expired.append(loop.time() - began))
    await asyncio.sleep(0.04)
    assert len(expired) <= 1
    await asyncio.sleep(0.3)
    assert len(expired) == 2
    assert expired[0] >= 0.1
    assert expired[1] >= 0.16


async def test_it_waits_again_after_a_pause() -> None:
    expired: list[int] = []
    deadlines = Deadlines(0.02)
    for number in range(3):
        deadlines.add(lambda number=number: expired.append(number))  # type: ignore[misc]
        await asyncio.sleep(0.1)
    assert expired == [0, 1, 2]


async def test_a_closed_one_calls_nobody() -> None:
    expired: list[str] = []
    deadlines = Deadlines(0.02)
    deadlines.add(lambda: expired.append("late"))
    deadlines.close()
    await asyncio.sleep(0.1)
    assert expired == []


async def test_what_is_over_is_not_held() -> None:
    deadlines = Deadlines(60.0)
    for _ in range(1000):
        deadlines.add(lambda: None).over = True
    assert len(deadlines._waiting) == 1
    deadlines.close()
