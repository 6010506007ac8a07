"""SQLite's write gate admits one holder at a time, prefers the receiver and starves no worker."""

import asyncio
from collections import Counter

from onceward.store.sqlite.write_gate import RECEIVER_STREAK_MAX, WriteGate
from tests.factories import start_task


class Writers:
    """Tasks that hold the gate for one loop iteration each, and the order in which they did."""

    def __init__(self) -> None:
        self.gate = WriteGate()
        self.order: list[str] = []
        self.holders = 0
        self.max_holders = 0

    async def write(self, name: str, *, receiver: bool = False) -> None:
        await self.gate.acquire(receiver=receiver)
        self.holders += 1
        self.max_holders = max(self.max_holders, self.holders)
        self.order.append(name)
        await asyncio.sleep(0)
        self.holders -= 1
        self.gate.release()


async def test_one_task_holds_the_gate_at_a_time() -> None:
    writers = Writers()
    await asyncio.gather(*(writers.write("w", receiver=n % 3 == 0) for n in range(60)))
    assert (writers.max_holders, len(writers.order)) == (1, 60)


async def test_workers_enter_in_order_of_arrival() -> None:
    writers = Writers()
    await asyncio.gather(*(writers.write(str(number)) for number in range(10)))
    assert writers.order == [str(number) for number in range(10)]


async def test_the_receiver_overtakes_workers_that_came_earlier() -> None:
    writers = Writers()
    await writers.gate.acquire()
    waiting = [await start_task(writers.write(f"worker {number}")) for number in range(3)]
    waiting.append(await start_task(writers.write("receiver", receiver=True)))
    writers.gate.release()
    await asyncio.gather(*waiting)
    assert writers.order == ["receiver", "worker 0", "worker 1", "worker 2"]


async def test_the_receiver_does_not_starve_workers() -> None:
    writers = Writers()
    await writers.gate.acquire()
    calls = [writers.write("worker") for _ in range(5)]
    calls += [writers.write("receiver", receiver=True) for _ in range(50)]
    waiting = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    writers.gate.release()
    await asyncio.gather(*waiting)
    cycle = [*["receiver"] * RECEIVER_STREAK_MAX, "worker"]
    assert writers.order[: len(cycle) * 5] == cycle * 5


async def test_a_cancelled_waiter_is_skipped() -> None:
    writers = Writers()
    await writers.gate.acquire()
    first, second, third = [
        await start_task(writers.write(name)) for name in ("first", "second", "third")
    ]
    second.cancel()
    await asyncio.sleep(0)
    writers.gate.release()
    await asyncio.gather(first, third)
    assert writers.order == ["first", "third"]


async def test_a_waiter_cancelled_as_it_gets_the_gate_passes_it_on() -> None:
    writers = Writers()
    await writers.gate.acquire()
    first, second = [await start_task(writers.write(name)) for name in ("first", "second")]
    writers.gate.release()
    first.cancel()
    await asyncio.wait_for(second, 1.0)
    assert writers.order == ["second"]
    await asyncio.wait_for(writers.write("later"), 1.0)


async def test_the_gate_is_free_after_the_last_holder() -> None:
    writers = Writers()
    for _ in range(3):
        await asyncio.wait_for(writers.write("alone"), 1.0)
    assert Counter(writers.order) == {"alone": 3}
