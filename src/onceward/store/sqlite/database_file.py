"""The SQLite file: safe to open, for its owner alone, and still the one that was opened.

SQLite goes on writing into a file that was deleted or replaced, and reports success. So the store
compares the files that the names lead to with those that it opened, after each commit.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from onceward.errors import ConfigurationError, LedgerReplaced, OutcomeUnknown
from onceward.runtime.log_fields import LogFields

_log = logging.getLogger("onceward.store")

OWNER_ONLY: Final = 0o600
_OTHERS: Final = 0o077
_BESIDE: Final = ("-wal", "-shm")
_WAL_TRIES: Final = 20
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")

_Identity = tuple[int, int]
"""The device and the inode of a file."""


class DatabaseFile:
    """The database file, with its WAL and its shared memory beside it."""

    def __init__(self, given: str) -> None:
        self.given = given
        """The path as it was typed, for messages."""
        self._absolute = Path(given).absolute()  # stays the same if the process changes its folder
        self.path: Final = os.path.realpath(given)
        """The path without symbolic links. SQLite names the files beside it after this one."""
        self.on_lost: Callable[[], object] = lambda: None
        """Called once, in any thread, when the file is found to be deleted or replaced."""
        self._opened: dict[Path, _Identity] = {}
        self._loss = ""

    def prepare(self) -> None:
        """Create the file unless it exists. Raise ConfigurationError if it is not safe to open."""
        self._refuse_other_names()
        self._refuse_stray_wal()
        with suppress(OSError):  # FileExistsError, or SQLite reports why it cannot open the file
            _create(self.path)

    def require_existing(self) -> None:
        """Raise ConfigurationError if there is no file: SQLite would create one."""
        if not Path(self.path).exists():
            raise ConfigurationError(
                f"There is no file {self.path}. Check the path and the current folder: it is "
                "created by `onceward serve`, `onceward work` or `onceward migrate`"
            )

    def warn_if_readable(self) -> None:
        """Log a warning for each file that other users may open."""
        for path in map(Path, (self.path, *(self.path + suffix for suffix in _BESIDE))):
            mode = path.stat().st_mode & 0o777 if path.exists() else 0
            if mode & _OTHERS:
                _log.warning(
                    "%s can be opened by other users (mode %04o), and contains payloads and "
                    "secrets; run: chmod 600 %s",
                    path,
                    mode,
                    path,
                )

    def watch(self, *others: Path) -> None:
        """Remember the files that are open now, and `others` that must stay in place."""
        beside = [Path(self.path + suffix) for suffix in _BESIDE]
        own = (self._absolute, Path(self.path))  # two if the given path is a symbolic link
        self._opened = {path: self._identity(path) for path in (*own, *beside, *others)}

    @property
    def is_lost(self) -> bool:
        """Whether the file was deleted or replaced."""
        return bool(self._loss)

    def check(self) -> None:
        """Raise LedgerReplaced if a file was deleted or replaced since `watch`, and ever after."""
        if not self._loss:
            for path, identity in self._opened.items():
                self._compare(path, identity)
        if self._loss:
            raise LedgerReplaced(self._loss)

    def _compare(self, path: Path, opened: _Identity) -> None:
        try:
            is_same = self._identity(path) == opened
            what = "replaced"
        except (FileNotFoundError, NotADirectoryError):
            is_same, what = False, "deleted or moved"
        except OSError as error:
            raise OutcomeUnknown(f"{path} cannot be checked: {error.strerror}") from error
        if not is_same and not self._loss:
            self._loss = (
                f"{path} was {what} while the inbox used it, so nothing can be saved any more. "
                "Stop the inbox before you move or restore its files, and start it again"
            )
            _log.error("%s", self._loss, extra=LogFields(error=self._loss))
            self.on_lost()

    def _identity(self, path: Path) -> _Identity:
        """Return the identity of a file, through a symbolic link only if the given path was one.

        A file that was moved and left a link behind is the same file, but the next start would
        look for its WAL at the other end of the link.
        """
        is_link = path == self._absolute and str(path) != self.path
        found = path.stat() if is_link else path.lstat()
        return found.st_dev, found.st_ino

    def _refuse_other_names(self) -> None:
        """Refuse a file that has a second name: under each name, SQLite keeps another WAL."""
        try:
            found = self._absolute.stat()
        except OSError:
            return  # it does not exist, or SQLite reports the error
        if found.st_nlink > 1:
            msg = (
                f"{self.given} has {found.st_nlink} names (hard links). A program that opens it by "
                "another name would destroy it. Delete the other names (find them with: find / "
                f"-inum {found.st_ino}), or make a copy while no program uses it."
            )
            raise ConfigurationError(msg)
        if found.st_nlink == 0 or not Path(self.path).exists():
            raise ConfigurationError(f"{self.given} leads to a deleted file. Choose another file.")
        if self.path in _mount_points():
            msg = (
                f"{self.given} is mounted as a single file. SQLite keeps new events in "
                f"{Path(self.path).name}-wal beside it, outside the mount, and they would be lost "
                "with it. Mount the folder instead."
            )
            raise ConfigurationError(msg)

    def _refuse_stray_wal(self) -> None:
        """Refuse a symbolic link with a WAL beside it: the file was moved without its WAL."""
        stray = Path(f"{self._absolute}-wal")
        place = self.path + "-wal"
        try:
            is_stray = os.path.realpath(stray) != place and stray.stat().st_size > 0
        except OSError:
            return  # there is none
        if is_stray:
            msg = (
                f"{self.given} is a symbolic link to {self.path}, but {stray} is beside the link: "
                "the file was moved without it. It contains acknowledged events. Move it to "
                f"{place} before you start, unless the moved file has a newer WAL."
            )
            raise ConfigurationError(msg)


def _create(path: str) -> None:
    """Create a file that only its owner can open. Raise OSError if it exists."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, OWNER_ONLY)
    try:
        os.fchmod(file, OWNER_ONLY)  # the umask may have removed more
    finally:
        os.close(file)


def _mount_points() -> set[str]:
    """Return the mount points of this process. Empty on systems other than Linux."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    return {_ESCAPE.sub(lambda code: chr(int(code[1], 8)), line.split(" ")[4]) for line in lines}


def configure(connection: sqlite3.Connection, synchronous: str) -> None:
    """Set what a new connection needs."""
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only of a new file
    _use_wal(connection)
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log. SQLite itself does not wait here for another process."""
    for remaining in reversed(range(_WAL_TRIES)):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or not remaining:
                raise
            connection.execute("BEGIN IMMEDIATE")  # waits for the lock
            connection.execute("COMMIT")
        else:
            return
