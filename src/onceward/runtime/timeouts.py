"""Coroutines with a deadline: cancelled at the deadline, abandoned if they do not stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from onceward.errors import OncewardError

GRACE_SECONDS: Final = 5.0
"""How long a cancelled coroutine may take to stop."""


async def run_with_deadline(
    name: str,
    run: Coroutine[Any, Any, None],
    remaining: Callable[[], float],
    on_expired: Callable[[], object] = lambda: None,
) -> bool:
    """Run a coroutine while `remaining()` is positive. Return whether it finished.

    Call `on_expired` at the deadline, before the coroutine is cancelled. Raises the coroutine's
    error, and OncewardError if it cancelled itself.
    """
    task = asyncio.create_task(run)
    task.add_done_callback(_retrieve_exception)
    try:
        while not task.done() and (seconds := remaining()) > 0:
            await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            on_expired()
    finally:
        is_expired = not task.done()
        if is_expired:
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
    if task.cancelled() and not is_expired:
        message = f"{name} cancelled itself"
        raise OncewardError(message)
    if not is_expired:
        task.result()
    return not is_expired


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Mark the exception of an abandoned task as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
