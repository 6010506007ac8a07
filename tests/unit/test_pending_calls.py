"""Calls that are noted until they start."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from onceward.errors import TransactionMisuse
from onceward.work.running.pending_calls import PendingCalls
from tests.factories import start_task


async def statement() -> int:
    return 1


def note(calls: PendingCalls) -> Coroutine[Any, Any, int]:
    return calls.note("tx.execute", statement(), sys._getframe())


async def test_started_calls_are_dropped() -> None:
    calls = PendingCalls()
    for _ in range(1000):
        await note(calls)
    assert len(calls._calls) <= 16
    assert calls.take_misuse() is None


async def test_an_unstarted_call_is_kept_among_many_started_ones() -> None:
    calls = PendingCalls()
    note(calls)  # type: ignore[unused-coroutine]
    for _ in range(1000):
        await note(calls)
    assert "tests/unit/test_pending_calls.py:20 in note: tx.execute(…)" in str(calls.take_misuse())


async def test_many_unstarted_calls_are_noted_and_then_dropped() -> None:
    calls = PendingCalls()
    for coroutine in [note(calls) for _ in range(1000)]:
        await coroutine
    for _ in range(1200):
        await note(calls)
    assert len(calls._calls) <= 1024
    assert calls.take_misuse() is None


async def test_all_calls_that_were_not_awaited_are_counted_and_closed() -> None:
    calls = PendingCalls()
    for _ in range(3):  # Python would warn about coroutines that are not closed
        note(calls)  # type: ignore[unused-coroutine]
    assert str(calls.take_misuse()).endswith("write `await tx.execute(…)` (and 2 more)")
    assert calls.take_misuse() is None


async def test_calls_that_start_together_are_dropped() -> None:
    calls = PendingCalls()
    for _ in range(1000):
        await asyncio.gather(note(calls), note(calls))
    assert len(calls._calls) <= 16


async def test_a_call_that_waits_was_awaited() -> None:
    calls = PendingCalls()
    waiting = await start_task(calls.note("tx.execute", asyncio.sleep(60, 1), sys._getframe()))
    assert calls.take_misuse() is None
    waiting.cancel()


async def test_too_many_calls_that_were_not_awaited_are_refused() -> None:
    calls = PendingCalls()
    with pytest.raises(TransactionMisuse, match=r"test_pending_calls\.py:\d+ in note: tx.execute"):
        [note(calls) for _ in range(100_000)]
    assert len(calls._calls) == 0
    assert "(and 16383 more)" in str(calls.take_misuse())  # even if it was caught
