"""Stale jobs: the reason says whether the handler had run."""

import asyncio
from typing import Any

from onceward import Event, Inbox, Transaction
from support.database import RawDatabase
from support.processes import eventually_async
from tests.inprocess import run_inbox


async def test_a_handler_that_ran_in_vain_is_named_in_the_reason(database_url: str) -> None:
    inbox = Inbox()
    started, go_on = asyncio.Event(), asyncio.Event()

    @inbox.at_start
    async def tables(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS states (state varchar(255))")

    @inbox.on("plan", version="created", version_key="id")
    async def sync(event: Event[Any], tx: Transaction) -> None:
        if event.id == "late":
            started.set()
            await go_on.wait()
        await tx.execute("INSERT INTO states (state) VALUES (:state)", {"state": event.id})

    async with run_inbox(inbox, database_url, workers=2) as bench:
        await bench.post("plan", {"id": "p", "created": 5}, "late")
        await started.wait()
        await bench.post("plan", {"id": "p", "created": 7}, "newer")

        async def is_applied() -> bool:
            return (await bench.job("newer")).finished_at is not None

        await eventually_async(is_applied, "the newer event is applied")
        await bench.post("plan", {"id": "p", "created": 6}, "older")
        go_on.set()
        await bench.wait_until_idle()
        ran, refused = await bench.job("late"), await bench.job("older")
    assert ran.last_error == (
        "stale: version 5 is older than 7, which event newer applied; the handler had run, and "
        "what it wrote in tx was rolled back"
    )
    assert refused.last_error == "stale: version 6 is older than 7, which event newer applied"
    assert RawDatabase(database_url).rows("SELECT state FROM states") == [("newer",)]
