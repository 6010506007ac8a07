"""An inbox with handlers that are slow, block their process, or end it. Each leaves a note."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from onceward import Event, Inbox, Transaction

inbox = Inbox()


class Wait(msgspec.Struct):
    seconds: float
    touch: str
    """A file to make when the handler has started."""


@inbox.at_start
async def tables(tx: Transaction) -> None:
    await tx.execute("CREATE TABLE IF NOT EXISTS notes (event varchar(255))")


def start(wait: Wait) -> None:
    """Let the test know."""
    Path(wait.touch).touch()


async def note(event: Event[Any], tx: Transaction) -> None:
    await tx.execute("INSERT INTO notes (event) VALUES (:event)", {"event": event.id})


@inbox.on("plain", transaction="shared")
async def plain(event: Event[Any], tx: Transaction) -> None:
    await note(event, tx)


@inbox.on("slow")
async def slow(event: Event[Wait], tx: Transaction) -> None:
    start(event.payload)
    await asyncio.sleep(event.payload.seconds)
    await note(event, tx)


@inbox.on("blocking", max_attempts=2)
async def block(event: Event[Wait], tx: Transaction) -> None:
    start(event.payload)
    time.sleep(event.payload.seconds)  # noqa: ASYNC251 - the very mistake
    await note(event, tx)


@inbox.on("deadly", max_attempts=2)
async def die(event: Event[Any], tx: Transaction) -> None:
    await note(event, tx)
    os._exit(7)
