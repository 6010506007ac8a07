"""Sync handlers: a thread for each run, and the async objects behind blocking calls."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from types import CoroutineType, FrameType
from typing import Any, TypeVar

from onceward.errors import PermanentError
from onceward.ports import Row
from onceward.work.effects import Effects
from onceward.work.transaction import Parameters, Transaction

T = TypeVar("T")


class SyncTransaction:
    """A Transaction for a sync handler; see there."""

    def __init__(self, transaction: Transaction, loop: asyncio.AbstractEventLoop) -> None:
        self._transaction = transaction
        self._loop = loop

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        """Run a statement; answers with the number of rows it touched."""
        return _wait(self._transaction.execute(sql, parameters), self._loop)

    def fetch(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement; answers with its rows, each a dict by column name."""
        return _wait(self._transaction.fetch(sql, parameters), self._loop)

    def fetch_one(self, sql: str, parameters: Parameters | None = None) -> Row | None:
        """Run a statement; answers with its first row, or None."""
        return _wait(self._transaction.fetch_one(sql, parameters), self._loop)

    def fetch_value(self, sql: str, parameters: Parameters | None = None) -> Any:
        """Run a statement; answers with the first column of its first row, or None."""
        return _wait(self._transaction.fetch_value(sql, parameters), self._loop)


class SyncEffects:
    """Effects for a sync handler; see there."""

    def __init__(self, effects: Effects, loop: asyncio.AbstractEventLoop) -> None:
        self._effects = effects
        self._loop = loop

    def once(self, key: str, *, reference: str | None = None) -> bool:
        """Say whether this is the first time, in the handler's transaction."""
        return _wait(self._effects.once(key, reference=reference), self._loop)


def _wait(call: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    return asyncio.run_coroutine_threadsafe(call, loop).result()


class HandlerCall:
    """A handler on its way: await it, or ask where it is."""

    def __init__(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], *, is_async: bool
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._is_async = is_async
        self._coroutine: CoroutineType[Any, Any, Any] | None = None
        self._thread: threading.Thread | None = None

    async def finish(self) -> None:
        """Run it to its end. A thread that outlives the wait is left to itself."""
        if self._is_async:
            self._coroutine = self._function(**self._arguments)
            await _InContext(self._coroutine)
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(
            target=_run,
            args=(self._function, self._arguments, loop, ended),
            name="onceward-handler",
            daemon=True,
        )
        self._thread.start()
        await ended

    def location(self) -> str:
        """The line of the handler that is waiting now."""
        frame: FrameType | None = None
        if self._coroutine is not None:
            frame = self._coroutine.cr_frame
        elif self._thread is not None:
            frame = _handler_frame(sys._current_frames().get(self._thread.ident or 0))  # noqa: SLF001 - the only way to see another thread
        if frame is None:
            return "an unknown place"
        code = frame.f_code
        return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {code.co_name}"


class _InContext:
    """A coroutine with context variables of its own, though the task is another's as well."""

    def __init__(self, coroutine: CoroutineType[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        run = contextvars.copy_context().run
        send, throw = self._coroutine.send, self._coroutine.throw
        resume, value = send, None
        while True:
            try:
                awaited = run(resume, value)
            except StopIteration:
                return
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - it is for the coroutine
                resume, value = throw, error
            else:
                resume, value = send, None


def _run(
    function: Callable[..., object],
    arguments: Mapping[str, Any],
    loop: asyncio.AbstractEventLoop,
    ended: asyncio.Future[None],
) -> None:
    problem: BaseException | None = None
    try:
        _refuse_unrun(function(**arguments))
    except StopIteration as error:
        problem = RuntimeError(f"the handler raised {error!r}")  # a future cannot hold it
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits
        problem = error

    def resolve() -> None:
        if ended.done():
            return
        if problem is None:
            ended.set_result(None)
        else:
            ended.set_exception(problem)

    if not loop.is_closed():
        loop.call_soon_threadsafe(resolve)


def _refuse_unrun(result: object) -> None:
    """A coroutine or a generator that was only made has done nothing: it must not count."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if not inspect.isasyncgen(result):
            result.close()
        message = f"the handler returned a {type(result).__name__} instead of running it"
        raise PermanentError(message)


def _handler_frame(frame: FrameType | None) -> FrameType | None:
    """The frame of the handler itself, below all that it called."""
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code is _run.__code__:
            return frame
        frame = frame.f_back
    return frame
