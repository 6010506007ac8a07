"""A handler's call, in the current task or in a thread: its frames, its context, its result."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from types import CoroutineType, FrameType, TracebackType
from typing import Any, Final, NamedTuple

from onceward.runtime.code_location import frame_location
from onceward.runtime.tracebacks import traceback_from
from onceward.work.running.loop_watch import BLOCKED_SECONDS, LoopWatch

_AWAITABLES: Final = (
    ("cr_frame", "cr_await"),
    ("gi_frame", "gi_yieldfrom"),
    ("ag_frame", "ag_await"),
)
"""The attributes of coroutines, generators and async generators: the frame, the awaited object."""


class Abandonment(NamedTuple):
    """Callbacks for a cancelled call that leaves a thread behind, and for that thread's end."""

    begin: Callable[[], object]
    end: Callable[[], object]


class HandlerCall:
    """One call of a handler, in the current task or in a thread."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        is_async: bool,
        loop_watch: LoopWatch,
        abandonment: Abandonment | None = None,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._is_async = is_async
        self._loop_watch = loop_watch
        self._abandonment = abandonment
        self._coroutine: CoroutineType[Any, Any, Any] | None = None
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._is_abandoned = False
        self.result: object = None
        """The value that the handler returned."""

    async def run(self) -> None:
        """Run the handler until it returns.

        Cancelling this call does not stop a thread, which is then reported to the `abandonment`.
        """
        if self._is_async:
            self._coroutine = self._function(**self._arguments)
            self.result = await _WithOwnContext(self._coroutine, self._loop_watch)
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(
            target=_run_in_thread,
            args=(self._function, self._arguments, loop, partial(self._resolve, done)),
            name="onceward-handler",
            daemon=True,
        )
        self._thread.start()
        try:
            await done
        except asyncio.CancelledError:
            if not self._has_ended and self._abandonment is not None:
                self._is_abandoned = True
                self._abandonment.begin()
            raise

    def _resolve(
        self, done: asyncio.Future[None], result: object, failure: BaseException | None
    ) -> None:
        """Set the outcome of the thread, which has ended."""
        self._has_ended = True
        if self._is_abandoned and self._abandonment is not None:
            self._abandonment.end()
        if done.done():
            return
        if failure is None:
            self.result = result
            done.set_result(None)
        else:
            done.set_exception(failure)

    def location(self) -> str:
        """Return the line at which the handler is now, or the handler once it has returned."""
        frames = self._frames()
        return frame_location(frames[0]) if frames else self._loop_watch.label

    def traceback(self) -> TracebackType | None:
        """Return a traceback from the handler to the line that runs or waits now."""
        return traceback_from(reversed(self._frames()))

    def _frames(self) -> list[FrameType]:
        """Return the frames of the handler and of everything that it called, outermost first."""
        if self._coroutine is not None:
            return _awaiting_frames(self._coroutine)
        if self._thread is not None:
            return _handler_frames(sys._current_frames().get(self._thread.ident or 0))  # noqa: SLF001 - the only API that shows another thread
        return []


class _WithOwnContext:
    """Awaits a coroutine with its own context variables, in a task that runs other handlers too.

    The watch gets the time of each step, in which nothing else runs in the event loop.
    """

    def __init__(self, coroutine: CoroutineType[Any, Any, Any], loop_watch: LoopWatch) -> None:
        self._coroutine = coroutine
        self._loop_watch = loop_watch

    def __await__(self) -> Generator[Any, Any, Any]:
        run = contextvars.copy_context().run
        monotonic = self._loop_watch.monotonic
        send, throw = self._coroutine.send, self._coroutine.throw
        resume, value = send, None
        while True:
            started = monotonic()
            try:
                awaited = run(resume, value)
            except StopIteration as stop:
                return stop.value
            finally:
                if (seconds := monotonic() - started) > BLOCKED_SECONDS:
                    self._loop_watch.warn(seconds)
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - thrown into the coroutine
                resume, value = throw, error
            else:
                resume, value = send, None


def _run_in_thread(
    function: Callable[..., object],
    arguments: Mapping[str, Any],
    loop: asyncio.AbstractEventLoop,
    resolve: Callable[[object, BaseException | None], object],
) -> None:
    result: object = None
    failure: BaseException | None = None
    try:
        result = function(**arguments)
    except StopIteration as error:
        failure = RuntimeError("the handler raised StopIteration")  # a future refuses it
        failure.__cause__ = error
    except BaseException as error:  # noqa: BLE001 - raised again in the task that waits
        failure = error

    with suppress(RuntimeError):  # the process ends, and its loop is closed
        loop.call_soon_threadsafe(resolve, result, failure)


def _handler_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames between the call of a handler in its thread and the innermost one."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_code is not _run_in_thread.__code__:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1] if frame is not None else []


def _awaiting_frames(awaitable: Any) -> list[FrameType]:
    """Return the frames of a coroutine and of those it waits for, as far as Python shows them."""
    frames: list[FrameType] = []
    while awaitable is not None:
        kind = next((kind for kind in _AWAITABLES if hasattr(awaitable, kind[0])), None)
        if kind is None:  # a future, or an object of a C extension
            break
        frame, awaitable = (getattr(awaitable, name) for name in kind)
        if frame is not None:
            frames.append(frame)
    return frames
