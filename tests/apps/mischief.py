"""An inbox with handlers that are slow, block the event loop, or exit the process."""

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
    """The path of a file to create when the handler starts."""


@inbox.at_start
async def create_tables(tx: Transaction) -> None:
    await tx.execute("CREATE TABLE IF NOT EXISTS notes (event varchar(255))")


def signal_start(wait: Wait) -> None:
    Path(wait.touch).touch()


async def note(event: Event[Any], tx: Transaction) -> None:
    await tx.execute("INSERT INTO notes (event) VALUES (:event)", {"event": event.id})


@inbox.on("plain", transaction="shared")
async def plain(event: Event[Any], tx: Transaction) -> None:
    await note(event, tx)


@inbox.on("slow")
async def slow(event: Event[Wait], tx: Transaction) -> None:
    signal_start(event.payload)
    await asyncio.sleep(event.payload.seconds)
    await note(event, tx)


@inbox.on("blocking", max_attempts=2)
async def block(event: Event[Wait], tx: Transaction) -> None:
    signal_start(event.payload)
    time.sleep(event.payload.seconds)  # noqa: ASYNC251 - the mistake under test
    await note(event, tx)


@inbox.on("deadly", max_attempts=2)
async def die(event: Event[Any], tx: Transaction) -> None:
    await note(event, tx)
    os._exit(7)


@inbox.on("stuck", timeout_seconds=0.1)
def hang(event: Event[Wait]) -> None:
    signal_start(event.payload)
    time.sleep(event.payload.seconds)  # past the timeout, as a stuck library call would


@inbox.on("stubborn")
async def resist(event: Event[Wait]) -> None:
    signal_start(event.payload)
    while True:
        try:
            await asyncio.sleep(event.payload.seconds)
        except asyncio.CancelledError:
            continue


@inbox.on("endless")
async def spin(event: Event[Wait]) -> None:
    signal_start(event.payload)
    while True:
        time.sleep(0.01)  # noqa: ASYNC251 - it blocks the event loop on purpose


@inbox.on("interrupting", max_attempts=1)
async def interrupt() -> None:
    raise KeyboardInterrupt
