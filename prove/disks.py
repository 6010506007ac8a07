"""Disks of our own: small ones that fill up, and images to copy as a power cut leaves them.

Only root can mount them. They are gone when they are left, and what a killed run left behind is
cleared away by the next one.
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
WITHOUT_FLUSH = "commit=300"
"""Nothing reaches the disk by itself for five minutes: only what was synced."""


class NoDisk(Exception):
    """A disk cannot be mounted here; the message says why."""


def clear_away() -> None:
    """Unmount and remove what runs that were killed left behind."""
    for folder in PARENT.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _remove(folder)


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A folder on a disk of its own that is soon full."""
    with (
        _folder() as folder,
        _mounted(folder, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs") as place,
    ):
        yield place


@contextmanager
def image_disk(megabytes: int) -> Iterator["ImageDisk"]:
    """A disk that is a file."""
    with _folder() as folder:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(megabytes * 1024 * 1024)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        with _mounted(folder, "-o", f"loop,{WITHOUT_FLUSH}", str(image)) as place:
            yield ImageDisk(folder, image, place)


class ImageDisk:
    """A disk that can be looked at as it would be if the power were cut now."""

    def __init__(self, folder: Path, image: Path, place: Path) -> None:
        self.place = place
        self._folder = folder
        self._image = image

    def sync(self) -> None:
        """Write everything to the disk, so that what follows is all that can be lost."""
        _run("sync", "--file-system", str(self.place))

    def copy(self) -> Path:
        """Take the bytes that are on the disk now, and nothing that is only in memory."""
        copy = self._folder / "copy"
        _run("cp", "--sparse=always", str(self._image), str(copy))
        return copy

    @contextmanager
    def mounted(self, copy: Path) -> Iterator[Path]:
        """The copy as a disk: the file system's journal is replayed, as after a power cut."""
        try:
            with _mounted(self._folder, "-o", "loop", str(copy)) as place:
                yield place
        finally:
            copy.unlink()


def fill(folder: Path) -> Path:
    """Leave no room on a disk; answers with the file to remove for that to end."""
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
        raise NoDisk("only root can mount a disk")
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=PARENT))
    folder.chmod(0o755)  # the database's account must get through
    try:
        yield folder
    finally:
        _remove(folder)


@contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="mount-", dir=folder))
    _run("mount", *arguments, str(place))
    try:
        place.chmod(0o777)
        yield place
    finally:
        _run("umount", "--lazy", str(place))


def _remove(folder: Path) -> None:
    """Remove a folder with all its mounts: nothing on them is removed file by file."""
    mounted = [line.split()[1] for line in MOUNTS.read_text().splitlines()]
    for place in mounted:
        if Path(place).is_relative_to(folder):
            _run("umount", "--lazy", place)
    shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoDisk(f"{command[0]}: {done.stderr.strip()}")
