"""Files of the archive in a folder. Reads and writes block, so they run in threads."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from onceward.errors import ArchiveDamaged, ArchiveUnavailable, ConfigurationError

_CHUNK_BYTES: Final = 1024 * 1024
_FILE_FAULTS: Final = frozenset({errno.EIO, errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""Errors that are about one file. The others may be about the folder, its mount or the user."""


class Folder:
    """A folder, on a disk that survives the machine's restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.location = path.as_uri()

    def check(self) -> None:
        """Raise ConfigurationError unless files can be created here."""
        if self._path.exists() and not self._path.is_dir():
            raise ConfigurationError(f"archive: {self._path} is not a folder; name its folder")
        if not self._path.is_dir():
            raise ConfigurationError(
                f"archive: the folder {self._path} does not exist. Create it, or mount its disk: "
                "Onceward does not create it, so that files never go to an unmounted disk"
            )
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"archive: the folder {self._path} is not writable for this user. Change its "
                "owner or its permissions"
            )

    async def put(self, path: str, source: Path) -> None:
        """Copy a file to a new name, durably. Never replace a file."""
        await asyncio.to_thread(self._put, self._path / path, source)

    async def get(self, path: str, target: Path, max_bytes: int) -> None:
        """Copy a file to the local `target`.

        Raise ArchiveDamaged if it is missing, larger than `max_bytes` or no file, and OSError if
        the target cannot be written.
        """
        await asyncio.to_thread(self._get, self._path / path, target, max_bytes)

    def _put(self, target: Path, source: Path) -> None:
        with _unavailable(self._path):
            self._make_folders(target.parent)
            staged = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            try:
                _copy(source, staged)
                os.link(staged, target)  # fails if the name is taken
            finally:
                staged.unlink(missing_ok=True)
            _sync_folder(target.parent)

    def _get(self, source: Path, target: Path, max_bytes: int) -> None:
        with _unavailable(self._path):
            self._check_mounted()
        with self._open(source) as reader, _create(target) as writer:
            while chunk := self._read(reader):
                if writer.tell() + len(chunk) > max_bytes:
                    raise ArchiveDamaged(f"it has more than {max_bytes} bytes")
                writer.write(chunk)

    def _open(self, source: Path) -> BinaryIO:
        """Open a regular file. Opening a pipe without O_NONBLOCK would wait for its writer."""
        with self._reading():
            descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ArchiveDamaged("it is not a regular file")
        return os.fdopen(descriptor, "rb")

    def _read(self, reader: BinaryIO) -> bytes:
        with self._reading():
            return reader.read(_CHUNK_BYTES)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise ArchiveDamaged for an error of one file, and ArchiveUnavailable for others."""
        with _unavailable(self._path):
            try:
                yield
            except FileNotFoundError as error:
                raise ArchiveDamaged("it is missing") from error
            except OSError as error:
                if error.errno not in _FILE_FAULTS:
                    raise
                raise ArchiveDamaged(f"it cannot be read: {error.strerror}") from error

    def _check_mounted(self) -> None:
        """Raise OSError if the folder itself is gone."""
        self._path.stat()

    def _make_folders(self, folder: Path) -> None:
        """Create the folders below ours, durably. Never create our own: it may be a mount."""
        self._check_mounted()
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(each.parent)


def _copy(source: Path, target: Path) -> None:
    """Copy a file and sync it to the disk. Only this user can read the copy."""
    with source.open("rb") as reader, _create(target) as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())


def _create(target: Path) -> BinaryIO:
    """Create a file that only this user can read."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    return os.fdopen(descriptor, "wb")


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _unavailable(folder: Path) -> Iterator[None]:
    """Raise OSError as ArchiveUnavailable."""
    try:
        yield
    except OSError as error:
        raise ArchiveUnavailable(
            f"the folder {folder} cannot be used: {error.strerror}. Check its disk, its mount and "
            "its permissions"
        ) from error
