"""The lock of the process that serves an SQLite file."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from onceward.errors import ConfigurationError


class FileLock:
    """A lock in a file beside the database. The file is deleted with the lock.

    A process that opened the file before its deletion locks a file that nobody else can find, so
    each process checks after locking that the path still leads to its file.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._path = Path(f"{database}.lock")
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock. Raise ConfigurationError if another process has it."""
        try:
            while self._file is None:
                self._file = _lock(self._path)
        except BlockingIOError as error:
            msg = (
                f"Another process serves {self._database}. SQLite supports one serving process: "
                "stop that one, or use PostgreSQL to run several "
                "(ONCEWARD_DATABASE_URL=postgresql://…, or --database)."
            )
            raise ConfigurationError(msg) from error
        except OSError as error:
            raise ConfigurationError(self._reason(error)) from error

    def release(self) -> None:
        """Delete the file and release the lock, if it was taken."""
        if self._file is not None:
            with suppress(OSError):  # the folder may be read-only by now
                self._path.unlink()
            self._file.close()
            self._file = None

    def _reason(self, error: OSError) -> str:
        path, folder = self._database, Path(self._database).parent
        if not folder.is_dir():
            return (
                f"{path} cannot be created: there is no folder {folder}. Create it, or set "
                "--database"
            )
        if self._path.exists():
            return f"{self._path} cannot be written: {error.strerror}"
        return (
            f"{path} cannot be opened: the folder {folder} cannot be written to "
            f"({error.strerror}). SQLite writes beside the file: make it writable, or set "
            "--database"
        )


def _lock(path: Path) -> IO[str] | None:
    """Lock a file and return it; None if another process has just deleted it. Raise OSError."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
            return file
    except FileNotFoundError:  # deleted between the two checks
        pass
    except BaseException:
        file.close()
        raise
    file.close()
    return None
