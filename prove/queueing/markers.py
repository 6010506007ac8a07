"""Markers: lines that a handler appends to a file, so that they survive a rollback and a SIGKILL.

The file is in memory of the kernel: a marker costs no transaction, and needs no lock of the
database under test.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

VARIABLE = "PROVE_MARKERS"
"""The environment variable with the folder of the markers and of the gate."""

START, END, CLAIM = "start", "end", "claim"


class Marker(NamedTuple):
    """One line: a start or an end of a handler, or the duration of a claim."""

    kind: str
    at: float
    pid: int
    handler: str
    source: str
    event: str
    """The id of the event; for a claim, its duration in seconds."""


class MarkerFolder:
    """The markers of all processes of one service, and a gate that handlers wait for."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "markers"
        self._gate = folder / "gate"
        self._descriptor: int | None = None

    def write(self, kind: str, handler: str, source: str, event: str) -> None:
        """Append one line. A single write is atomic in a file that is open for appending."""
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._descriptor = os.open(self._file, flags, 0o600)
        fields = (kind, repr(time.time()), str(os.getpid()), handler, source, event)
        os.write(self._descriptor, ("\t".join(fields) + "\n").encode())

    def read(self) -> Iterator[Marker]:
        """Yield all markers, in the order in which they were written."""
        text = self._file.read_text() if self._file.exists() else ""
        for line in text.splitlines():
            kind, at, pid, handler, source, event = line.split("\t")
            yield Marker(kind, float(at), int(pid), handler, source, event)

    def close_gate(self) -> None:
        """Let handlers wait at the gate."""
        self._gate.touch()

    def open_gate(self) -> None:
        """Let the handlers at the gate return."""
        self._gate.unlink(missing_ok=True)

    @property
    def is_gate_closed(self) -> bool:
        """Whether handlers wait at the gate."""
        return self._gate.exists()
