"""Runs that may take only so long: then they are broken off, and left to themselves if need be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from onceward.errors import OncewardError

GRACE_SECONDS: Final = 5.0
"""How long a run may take to end when it is broken off."""


async def run_with_deadline(
    name: str, run: Coroutine[Any, Any, None], remaining: Callable[[], float]
) -> bool:
    """Let something run for as long as seconds remain to it. False when it was broken off."""
    task = asyncio.create_task(run)
    task.add_done_callback(_retrieve_exception)
    is_late = False
    try:
        while not task.done() and (seconds := remaining()) > 0:
            await asyncio.wait({task}, timeout=seconds)
    finally:
        is_late = not task.done()
        if is_late:
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
    if task.cancelled() and not is_late:
        message = f"{name} was cancelled from inside"
        raise OncewardError(message)
    if not is_late:
        task.result()
    return not is_late


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Have seen how a task ended, also when nobody waits for it any more."""
    if not task.cancelled():
        task.exception()
