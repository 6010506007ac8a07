"""A call of `tx` or `effects` with wrong arguments fails the job for good and names the line."""

from collections.abc import Callable
from typing import Any

import pytest

from onceward import Event, Inbox, Transaction
from onceward.model.jobs import JobStatus
from tests.inprocess import run_inbox

KEY = 'f"mail:{event.id}"'


async def no_key(effects: Any) -> None:
    await effects.once()


async def unknown_keyword(event: Event[Any], effects: Any) -> None:
    await effects.once(event.id, ref="x")


async def number(effects: Any) -> None:
    await effects.once(5)


async def missing_key(effects: Any) -> None:
    await effects.once(None)


async def bad_reference(event: Event[Any], effects: Any) -> None:
    await effects.once(event.id, reference=["x"])


async def positional(tx: Any) -> None:
    await tx.execute("SELECT :a, :b", 1, 2)


async def keyword(tx: Any) -> None:
    await tx.fetch("SELECT :a", a=1)


async def no_statement(tx: Any) -> None:
    await tx.fetch_value()


def sync_no_key(effects: Any) -> None:
    effects.once()


def sync_number(effects: Any) -> None:
    effects.once(5)


def sync_keyword(tx: Any) -> None:
    tx.execute("SELECT :a", a=1)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_key, f"effects.once needs a key, such as effects.once({KEY})"),
        (unknown_keyword, f"effects.once has no argument 'ref'; write effects.once({KEY})"),
        (number, f"effects.once: the key is an int; pass a text such as {KEY}"),
        (missing_key, f"effects.once: the key is None; pass a text such as {KEY}"),
        (bad_reference, f"effects.once: the reference is a list; pass a text such as {KEY}"),
        (
            positional,
            'tx.execute got the wrong number of arguments; write tx.execute(sql, {"name": …})',
        ),
        (keyword, """tx.fetch has no argument 'a'; write tx.fetch(sql, {"name": …})"""),
        (
            no_statement,
            'tx.fetch_value needs a statement, such as tx.fetch_value(sql, {"name": …})',
        ),
        (sync_no_key, f"effects.once needs a key, such as effects.once({KEY})"),
        (sync_number, f"effects.once: the key is an int; pass a text such as {KEY}"),
        (sync_keyword, """tx.execute has no argument 'a'; write tx.execute(sql, {"name": …})"""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_wrong_call_is_permanent_and_names_the_line(
    sqlite_url: str, function: Callable[..., Any], reason: str
) -> None:
    inbox = Inbox()
    inbox.on("a")(function)
    async with run_inbox(inbox, sqlite_url) as bench:
        job = await bench.run_event("a")
    line = function.__code__.co_firstlineno + 1
    place = f"tests/integration/test_call_misuse.py:{line} in {function.__name__}"
    assert job.last_error == f"{place}: {reason}"
    assert (job.status, job.failure_type) == (JobStatus.FAILED, "permanent")


async def test_other_type_errors_are_retried(sqlite_url: str) -> None:
    class Effects:  # a class of the app with the same name
        def once(self, key: str) -> None: ...

    mine: Any = Effects()
    inbox = Inbox()

    @inbox.on("a", max_attempts=2)
    async def handler(tx: Transaction) -> None:
        mine.once()

    async with run_inbox(inbox, sqlite_url, retry_base_seconds=0.01) as bench:
        job = await bench.run_event("a")
    assert (job.failure_type, job.attempts) == ("exhausted", 2)
    assert (job.last_error or "").startswith("TypeError: ")
