"""Blocking calls in threads of their own, which do not delay the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def call_in_thread(call: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run a blocking call in a daemon thread. Return the future of its result.

    A thread cannot be stopped: cancelling the future leaves it running.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(_set_result, future, call())
        except StopIteration as error:  # a future refuses it
            settle = partial(_set_error, future, RuntimeError(f"{name} raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - raised again in the task that waits
            settle = partial(_set_error, future, error)
        with suppress(RuntimeError):  # the process ends, and its loop is closed
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_error(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
