"""The check of the archive: every payload that was dropped is in a recorded file that is whole."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import duckdb

from support.database import RawDatabase
from support.ledger_checker import Findings, Violation

FILES = "SELECT path, sha256, rows FROM onceward.archives ORDER BY id"


class ArchiveCheck:
    """Reads all recorded files, without the product."""

    def __init__(self, ledger: RawDatabase, folder: Path) -> None:
        self.findings = Findings()
        self.files = 0
        self._folder = folder
        self._archived: dict[int, bytes] = {}
        """The hash of the body of each archived event."""
        for path, sha256, rows in ledger.rows(FILES):
            self._read(path, bytes(sha256), rows)

    def check(self, dropped: Mapping[int, bytes]) -> None:
        """Compare the files with the events whose payloads are gone, by the hash of their body."""
        for event, sha256 in dropped.items():
            if (found := self._archived.get(event)) != sha256:
                state = "in no recorded file" if found is None else "archived with other bytes"
                self.findings.add(Violation.NOT_ARCHIVED, f"event {event}: {state}")

    @property
    def payloads(self) -> int:
        """Return how many payloads the recorded files have."""
        return len(self._archived)

    def _read(self, path: str, sha256: bytes, rows: int) -> None:
        file = self._folder / path
        self.files += 1
        if not file.exists():
            self.findings.add(Violation.ARCHIVE_DAMAGED, f"{path} is missing")
            return
        if hashlib.sha256(file.read_bytes()).digest() != sha256:
            self.findings.add(Violation.ARCHIVE_DAMAGED, f"{path} has another hash")
            return
        statement = "SELECT id, body FROM read_parquet(?)"
        found = duckdb.execute(statement, [str(file)]).fetchall()
        if len(found) != rows:
            self.findings.add(
                Violation.ARCHIVE_DAMAGED, f"{path} has {len(found)} rows, not {rows}"
            )
        self._archived |= {event: hashlib.sha256(body).digest() for event, body in found}
