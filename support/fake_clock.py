"""A clock that can be stepped, for processes that run with its environment (libfaketime)."""

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from support.programs import find_library

LIBRARY = "*/faketime/libfaketimeMT.so.1"


class SteppedClock:
    """The time of day of some processes. Their monotonic clocks stay true."""

    def __init__(self) -> None:
        library = find_library(LIBRARY)
        self._folder = tempfile.TemporaryDirectory(prefix="onceward-clock-")
        folder = Path(self._folder.name)
        folder.chmod(0o755)  # PostgreSQL's account reads the offset
        self._offset = folder / "offset"
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # With the fix, which is for an older libc, Python waits seconds for its own lock.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }
        self.step_to(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def step_to(self, seconds: int) -> None:
        """Set the clock this far ahead of the true time; negative values are behind it."""
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._offset)  # a process must not read half of it
