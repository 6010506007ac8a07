"""Coroutines with a deadline: cancelled at the deadline, abandoned if they do not stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from onceward.errors import OncewardError

GRACE_SECONDS: Final = 5.0
"""How long a cancelled coroutine may take to stop."""


class Interrupt:
    """Ends a run before its deadline, with an error."""

    __slots__ = ("_wake", "error")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._wake: Callable[[], object] | None = None

    def set(self, error: Exception) -> None:
        """End the run with this error, unless it has finished."""
        self.error = error
        if self._wake is not None:
            self._wake()

    async def wait(self, task: asyncio.Task[None], seconds: float) -> None:
        """Wait until the task is done, the seconds have passed, or the error is set."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def wake(_: object = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._wake = wake
        timer = loop.call_later(seconds, wake)
        task.add_done_callback(wake)
        try:
            await waiter
        finally:
            self._wake = None
            timer.cancel()
            task.remove_done_callback(wake)


async def run_with_deadline(
    name: str,
    run: Coroutine[Any, Any, None],
    remaining: Callable[[], float],
    interrupt: Interrupt,
    *,
    on_expired: Callable[[], object] = lambda: None,
    on_abandoned: Callable[[asyncio.Task[None]], object] = lambda _: None,
) -> bool:
    """Run a coroutine while `remaining()` is positive. Return whether it finished.

    Call `on_expired` at the deadline, before the coroutine is cancelled, and `on_abandoned` if it
    does not stop then. Raises the coroutine's
    error, the error of the `interrupt` that ended it, and OncewardError if it cancelled itself.
    """
    task = asyncio.create_task(run)
    task.add_done_callback(_retrieve_exception)
    try:
        while not task.done() and interrupt.error is None and (seconds := remaining()) > 0:
            await interrupt.wait(task, seconds)
        if not task.done() and interrupt.error is None:
            on_expired()
    finally:
        is_expired = not task.done()
        if is_expired:
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
            if not task.done():
                on_abandoned(task)
    if task.cancelled() and not is_expired:
        message = f"{name} cancelled itself"
        raise OncewardError(message)
    if not is_expired:
        task.result()
    elif interrupt.error is not None:
        raise interrupt.error
    return not is_expired


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Mark the exception of an abandoned task as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
