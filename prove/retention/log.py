"""What the processes do for maintenance: lines in a file, which survive a SIGKILL."""

import os
from collections import Counter
from pathlib import Path

VARIABLE = "PROVE_MAINTENANCE_LOG"
"""The environment variable with the path of the file."""

PRECEDENCE = "armed"
"""While a file of this name stands beside the log, only processes with a failpoint do maintenance:
otherwise they would seldom be elected when there is something to do."""

START, END, LOST = "start", "end", "lost"
"""An elected process starts, and ends; another one was not elected."""


def write(kind: str) -> None:
    """Append a line about this process. A single write is atomic in a file that is appended to."""
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{kind} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)


def is_held_back() -> bool:
    """Return whether this process leaves the maintenance to one with a failpoint."""
    has_precedence = "ONCEWARD_FAILPOINTS" in os.environ
    return not has_precedence and Path(os.environ[VARIABLE]).with_name(PRECEDENCE).exists()


class MaintenanceLog:
    """The lines so far. `read` adds the new ones."""

    def __init__(self, path: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.elected: set[int] = set()
        """The processes that were elected at least once."""
        self.running: set[int] = set()
        """The processes that started maintenance and did not end it. Some of them are dead."""
        self._path = path
        self._position = 0

    def read(self) -> None:
        """Read the lines that were written since the last time."""
        if not self._path.exists():
            return
        with self._path.open() as file:
            file.seek(self._position)
            for line in file:
                kind, _, pid = line.partition(" ")
                self._add(kind, int(pid))
            self._position = file.tell()

    def _add(self, kind: str, pid: int) -> None:
        self.counts[kind] += 1
        if kind == START:
            self.elected.add(pid)
            self.running.add(pid)
        elif kind == END:
            self.running.discard(pid)
