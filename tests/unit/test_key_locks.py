"""Locks by key are granted in order, without a deadlock, and leave nothing behind."""

import asyncio

import pytest

from onceward.work.inline.key_locks import Key, KeyLocks

A, B = ("stripe", "a"), ("stripe", "b")


async def test_waiters_for_one_key_are_served_in_order() -> None:
    locks, order = KeyLocks(), []

    async def enter(number: int) -> None:
        async with locks.hold([A]):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*map(enter, range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert not locks._locks
    assert not locks._users


async def test_requests_for_the_same_keys_in_another_order_do_not_deadlock() -> None:
    locks = KeyLocks()

    async def enter(*keys: Key) -> None:
        async with locks.hold(keys):
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        await asyncio.gather(*(enter(*keys) for keys in [(A, B), (B, A), (A, A, B)] * 5))
    assert not locks._locks


async def test_a_late_comer_waits_for_a_waiter_that_has_got_the_lock() -> None:
    locks, inside = KeyLocks(), asyncio.Event()

    async def enter() -> None:
        async with locks.hold([A]):
            inside.set()
            await asyncio.sleep(1)

    async with locks.hold([A]):
        waiter = asyncio.create_task(enter())
        await asyncio.sleep(0)
    await inside.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), locks.hold([A]):
            pass
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert not locks._locks


async def test_a_waiter_that_gives_up_leaves_the_lock_to_the_next() -> None:
    locks = KeyLocks()
    async with locks.hold([A]):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), locks.hold([B, A]):
                pass
        async with locks.hold([B]):
            pass
    assert not locks._locks
