"""The deadline of a process that has to stop, even if its handlers do not."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import threading
import time
from types import CoroutineType
from typing import Any, Final, TypeGuard

from onceward.cli._loop_watchdog import main_thread_location
from onceward.runtime.clock import Clock
from onceward.runtime.code_location import frame_location, is_library, is_own

EXIT_GRACE_SECONDS: Final = 10.0
"""The time after `drain_seconds` for cancelled handlers to stop and for leases to be released."""
LEFTOVER_SECONDS: Final = 1.0
"""The time for tasks and threads that are left when the service has closed."""

_LOOK_SECONDS: Final = 0.1
_MAX_LOCATIONS: Final = 3

_log = logging.getLogger("onceward.worker")


class ExitDeadline:
    """Ends the process at a time, from a thread of its own: the event loop may be blocked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_at: float | None = None
        self._exit_code = 1
        self._has_closed = False

    def start(self, seconds: float) -> None:
        """End the process in so many seconds, unless it ends by itself. A signal may call this."""
        is_running = self._ends_at is not None
        self._ends_at = self._clock.monotonic() + seconds
        if not is_running:
            threading.Thread(target=self._run, name="onceward-exit", daemon=True).start()

    def close(self, exit_code: int) -> None:
        """Leave little time to what still runs: the service has closed, and its jobs are released.

        A coroutine that ignores its cancellation would keep the event loop from closing for ever.
        """
        self._exit_code = exit_code
        self._has_closed = True
        self.start(LEFTOVER_SECONDS)

    def _run(self) -> None:
        while (seconds := (self._ends_at or 0.0) - self._clock.monotonic()) > 0:
            # Not in one piece: close() brings the end forward.
            time.sleep(min(seconds, _LOOK_SECONDS))
        try:
            self._report()
            logging.shutdown()
        finally:
            os._exit(self._exit_code)

    def _report(self) -> None:
        if self._has_closed:
            _log.warning(
                "a handler or a task of the app ignored its cancellation and was ended with the "
                "process%s; its job was released unless it had ended, and nothing that it wrote in "
                "tx was committed",
                _leftover_locations(),
            )
            return
        _log.error(
            "the process did not stop in time and was ended. %s. No event is lost: its jobs run "
            "again, unless their attempts are used up",
            main_thread_location(),
        )


def _leftover_locations() -> str:
    """Return where coroutines of the app still wait. All others have ended with their tasks."""
    frames = [each.cr_frame for each in gc.get_objects() if _is_leftover(each)]
    found = {frame_location(frame) for frame in frames if frame is not None}
    shown = sorted(found)[:_MAX_LOCATIONS]
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return f", at {', '.join(shown)}{more}" if shown else ""


def _is_leftover(value: object) -> TypeGuard[CoroutineType[Any, Any, Any]]:
    """Return whether a value is a coroutine of the app that waits, and for no other one of it."""
    return _waits_in_app(value) and not _waits_in_app(value.cr_await)


def _waits_in_app(value: object) -> TypeGuard[CoroutineType[Any, Any, Any]]:
    if type(value) is not CoroutineType or inspect.getcoroutinestate(value) != "CORO_SUSPENDED":
        return False
    path = value.cr_code.co_filename
    return not is_own(path) and not is_library(path)
