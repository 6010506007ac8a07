"""A transaction that several handlers join ends with the last of them, and once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onceward.ports import ignore_idle_timeout
from onceward.work.inline.joined_transaction import JoinedTransaction


async def test_it_begins_with_the_first_statement_and_ends_when_it_is_left() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def begin(*_: object) -> AsyncIterator[Any]:
        steps.append("begin")
        try:
            yield "transaction"
        finally:
            steps.append("end")

    async with JoinedTransaction[Any](begin) as joined:
        assert not joined.has_begun
        for _ in range(2):
            async with joined.join(str, ignore_idle_timeout) as transaction:
                assert transaction is joined._transaction
        context = joined._context  # a reference, so that only leaving can end it
        assert steps == ["begin"]
    assert steps == ["begin", "end"]
    assert context is not None


async def test_without_a_statement_nothing_begins() -> None:
    def begin(*_: object) -> Any:
        raise AssertionError

    async with JoinedTransaction[Any](begin) as joined:
        joined.join(str, ignore_idle_timeout)
