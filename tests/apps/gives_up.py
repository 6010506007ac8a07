"""An inbox whose handler kills its process, and whose on_failed may do so as well."""

import os
import signal
from typing import Any

from onceward import Event, Inbox, PermanentError, Transaction

inbox = Inbox()


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    await tx.execute("CREATE TABLE IF NOT EXISTS runs (event varchar(255))")
    await tx.execute("CREATE TABLE IF NOT EXISTS notes (event varchar(255), error varchar(255))")


async def note(event: Event[Any], tx: Transaction, error: BaseException) -> None:
    await tx.execute(
        "INSERT INTO notes (event, error) VALUES (:event, :error)",
        {"event": event.id, "error": type(error).__name__},
    )
    if event.type == "deadly.twice":
        os.kill(os.getpid(), signal.SIGKILL)


@inbox.on("deadly.*", max_attempts=2, on_failed=note)
async def die(event: Event[Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@inbox.on("refused", on_failed=note)
async def refuse(event: Event[Any]) -> None:
    raise PermanentError("no such account")


@inbox.on_batch("plain")
async def store(events: list[Event[Any]], tx: Transaction) -> None:
    for event in events:
        await tx.execute("INSERT INTO runs (event) VALUES (:event)", {"event": event.id})
