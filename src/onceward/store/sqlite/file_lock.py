"""The lock of the process that serves an SQLite file."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from onceward.errors import ConfigurationError
from onceward.store.sqlite.database_file import OWNER_ONLY, DatabaseFile


class FileLock:
    """A lock in a file beside the database. The file is deleted with the lock.

    A process that opened the file before its deletion locks a file that nobody else can find, so
    each process checks after locking that the path still leads to its file.
    """

    def __init__(self, database: DatabaseFile) -> None:
        self._database = database
        self.path: Final = Path(f"{database.path}.lock")
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raise ConfigurationError if another process has it."""
        try:
            while self._file is None:
                self._file = _lock(self.path)
        except BlockingIOError as error:
            msg = (
                f"Another process serves {self._database.given}. SQLite supports one serving "
                "process: stop that one, or use PostgreSQL to run several "
                "(ONCEWARD_DATABASE_URL=postgresql://…, or --database)."
            )
            raise ConfigurationError(msg) from error
        except OSError as error:
            raise ConfigurationError(self._reason(error)) from error

    def release(self) -> None:
        """Delete the file and release the lock, if it was taken."""
        if self._file is not None:
            with suppress(OSError):  # the folder may be read-only by now
                if _is_at(self.path, self._file):  # else it is the lock of another process
                    self.path.unlink()
            os.close(self._file)
            self._file = None

    def _reason(self, error: OSError) -> str:
        path, folder = self._database.given, Path(self._database.given).parent
        if not folder.is_dir():
            return (
                f"{path} cannot be created: there is no folder {folder}. Create it, or set "
                "--database"
            )
        if self.path.exists():
            return f"{self.path} cannot be written: {error.strerror}"
        return (
            f"{path} cannot be opened: the folder {folder} cannot be written to "
            f"({error.strerror}). SQLite writes beside the file: make it writable, or set "
            "--database"
        )


def _lock(path: Path) -> int | None:
    """Lock a file and return it; None if another process has just deleted it. Raise OSError."""
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, flags, OWNER_ONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, file):
            with suppress(PermissionError):  # another user left it
                os.fchmod(file, OWNER_ONLY)
            return file
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _is_at(path: Path, file: int) -> bool:
    """Return whether a path leads to an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False
