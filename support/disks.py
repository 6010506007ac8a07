"""Disposable disks: small ones that fill up, and disk images to copy as after a power cut.

Mounting needs root. A disk is unmounted when its context ends; `remove_stale_disks` removes disks
that killed runs left behind.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "onceward-disk-"
PARENT = Path(tempfile.gettempdir())
MOUNTS = Path("/proc/mounts")
NO_PERIODIC_FLUSH = "commit=300"
"""For five minutes ext4 writes only data that was synced explicitly."""


class DiskUnavailable(Exception):
    """No disk can be mounted here; the message gives the reason."""


def remove_stale_disks() -> None:
    """Unmount and remove the disks of processes that no longer exist."""
    for folder in PARENT.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _remove(folder)


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """Mount a tmpfs of limited size."""
    with (
        _folder() as folder,
        _mounted(folder, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs") as mount,
    ):
        yield mount


@contextmanager
def image_disk(megabytes: int) -> Iterator["ImageDisk"]:
    """Mount an ext4 file system that is stored in a file."""
    with _folder() as folder:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(megabytes * 1024 * 1024)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        with _mounted(folder, "-o", f"loop,{NO_PERIODIC_FLUSH}", str(image)) as mount:
            yield ImageDisk(folder, image, mount)


class ImageDisk:
    """A disk whose state after a power cut can be inspected at any moment."""

    def __init__(self, folder: Path, image: Path, mount: Path) -> None:
        self.mount = mount
        self._folder = folder
        self._image = image

    def sync(self) -> None:
        """Flush the whole file system, so that only later writes can be lost."""
        _run("sync", "--file-system", str(self.mount))

    def copy(self) -> Path:
        """Copy the bytes on the disk, without the ones that are only in memory."""
        copy = self._folder / "copy"
        _run("cp", "--sparse=always", str(self._image), str(copy))
        return copy

    @contextmanager
    def mounted(self, copy: Path) -> Iterator[Path]:
        """Mount a copy; the file system replays its journal, as after a power cut."""
        try:
            with _mounted(self._folder, "-o", "loop", str(copy)) as mount:
                yield mount
        finally:
            copy.unlink()


def fill(folder: Path) -> Path:
    """Fill the disk that holds a folder, and return the file to delete to free it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 4_096):
            with suppress(OSError):
                while file.write(b"\0" * size):
                    pass
    return filler


@contextmanager
def _folder() -> Iterator[Path]:
    if os.geteuid() != 0:
        raise DiskUnavailable("only root can mount a disk")
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=PARENT))
    folder.chmod(0o755)  # PostgreSQL's account must be able to enter
    try:
        yield folder
    finally:
        _remove(folder)


@contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    mount = Path(tempfile.mkdtemp(prefix="mount-", dir=folder))
    _run("mount", *arguments, str(mount))
    try:
        mount.chmod(0o777)
        yield mount
    finally:
        _run("umount", "--lazy", str(mount))


def _remove(folder: Path) -> None:
    """Unmount everything below a folder before deleting it: no file on a mount is deleted."""
    mounts = [line.split()[1] for line in MOUNTS.read_text().splitlines()]
    for mount in mounts:
        if Path(mount).is_relative_to(folder):
            _run("umount", "--lazy", mount)
    shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise DiskUnavailable(f"{command[0]}: {done.stderr.strip()}")
