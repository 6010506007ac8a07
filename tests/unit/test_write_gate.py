"""SQLite's gate lets one in at a time, the receiver first, and nobody waits for ever."""

import asyncio
from collections import Counter

from onceward.store.sqlite.write_gate import RECEIVER_TURNS, Gate
from tests.factories import start_task


class Visits:
    """Who was let in, in which order, and how many at one time."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.order: list[str] = []
        self.inside = 0
        self.most_inside = 0

    async def visit(self, name: str, *, receiver: bool = False) -> None:
        await self.gate.enter(receiver=receiver)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.order.append(name)
        await asyncio.sleep(0)
        self.inside -= 1
        self.gate.leave()


async def test_one_is_inside_at_a_time() -> None:
    visits = Visits()
    await asyncio.gather(*(visits.visit("w", receiver=n % 3 == 0) for n in range(60)))
    assert (visits.most_inside, len(visits.order)) == (1, 60)


async def test_workers_go_in_the_order_in_which_they_came() -> None:
    visits = Visits()
    await asyncio.gather(*(visits.visit(str(number)) for number in range(10)))
    assert visits.order == [str(number) for number in range(10)]


async def test_the_receiver_goes_before_workers_that_came_earlier() -> None:
    visits = Visits()
    await visits.gate.enter()
    waiting = [await start_task(visits.visit(f"worker {number}")) for number in range(3)]
    waiting.append(await start_task(visits.visit("receiver", receiver=True)))
    visits.gate.leave()
    await asyncio.gather(*waiting)
    assert visits.order == ["receiver", "worker 0", "worker 1", "worker 2"]


async def test_the_receiver_does_not_keep_workers_out() -> None:
    visits = Visits()
    await visits.gate.enter()
    everyone = [visits.visit("worker") for _ in range(5)]
    everyone += [visits.visit("receiver", receiver=True) for _ in range(50)]
    waiting = [asyncio.create_task(visit) for visit in everyone]
    await asyncio.sleep(0)
    visits.gate.leave()
    await asyncio.gather(*waiting)
    turn = [*["receiver"] * RECEIVER_TURNS, "worker"]
    assert visits.order[: len(turn) * 5] == turn * 5


async def test_who_gives_up_waiting_is_passed_over() -> None:
    visits = Visits()
    await visits.gate.enter()
    first, second, third = [
        await start_task(visits.visit(name)) for name in ("first", "second", "third")
    ]
    second.cancel()
    await asyncio.sleep(0)
    visits.gate.leave()
    await asyncio.gather(first, third)
    assert visits.order == ["first", "third"]


async def test_who_gives_up_in_the_moment_of_its_turn_lets_the_next_one_in() -> None:
    visits = Visits()
    await visits.gate.enter()
    first, second = [await start_task(visits.visit(name)) for name in ("first", "second")]
    visits.gate.leave()
    first.cancel()
    await asyncio.wait_for(second, 1.0)
    assert visits.order == ["second"]
    await asyncio.wait_for(visits.visit("later"), 1.0)


async def test_after_everyone_left_the_gate_is_open() -> None:
    visits = Visits()
    for _ in range(3):
        await asyncio.wait_for(visits.visit("alone"), 1.0)
    assert Counter(visits.order) == {"alone": 3}
