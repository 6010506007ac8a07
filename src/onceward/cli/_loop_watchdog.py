"""A watchdog that says where the event loop is blocked, while it is."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import Final

from onceward.runtime.clock import Clock
from onceward.runtime.code_location import frame_location, is_library, is_own
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.worker")

BLOCKED_SECONDS: Final = 5.0
"""How long the event loop may do one thing before the log says so."""
_LOOK_SECONDS: Final = 0.5


class LoopWatchdog:
    """Looks at the event loop of the main thread, from a thread of its own.

    A handler that blocks the loop is also named when it returns. One that never returns stops
    receiving, probes and renewals, and nothing else would say why.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_at = self._looked_at = clock.monotonic()
        self._is_reported = False
        self._has_ended = threading.Event()

    def start(self) -> None:
        """Watch the running event loop until `close`."""
        self._beat(asyncio.get_running_loop())
        threading.Thread(target=self._watch, name="onceward-watchdog", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._has_ended.set()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._seen_at = self._clock.monotonic()
        if not self._has_ended.is_set():
            loop.call_later(_LOOK_SECONDS, self._beat, loop)

    def _watch(self) -> None:
        while not self._has_ended.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        """Log a blocked event loop once, with the line at which it is now."""
        now = self._clock.monotonic()
        seconds, since_look = now - self._seen_at, now - self._looked_at
        self._looked_at = now
        if since_look > BLOCKED_SECONDS / 2:  # the whole process was suspended
            self._seen_at = now
        elif seconds < BLOCKED_SECONDS:
            self._is_reported = False
        elif not self._is_reported:
            self._is_reported = True
            message = (
                "the event loop has not run for %.0f s: nothing is received, and no lease is "
                "renewed. %s. Use a plain def for a handler that blocks: it runs in a thread"
            )
            fields = LogFields(seconds=round(seconds, 1))
            _log.error(message, seconds, main_thread_location(), extra=fields)


def main_thread_location() -> str:
    """Return a sentence about where the event loop is now: in the app's code if that blocks it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the only API that shows another thread
    while frame is not None and not is_own(frame.f_code.co_filename):
        if not is_library(frame.f_code.co_filename):
            return f"The event loop is blocked at {frame_location(frame)}"
        frame = frame.f_back
    return "The database does not respond, or a library blocks the event loop"
