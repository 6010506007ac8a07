"""Where tests keep their files: in memory, if it has room and programs may run there."""

import os
import shutil
from pathlib import Path

TEMPORARY = Path("/tmp")  # noqa: S108 - the path of a socket is limited to 107 bytes

_MEMORY = Path("/dev/shm")  # noqa: S108 - every folder in it gets a random name
_MIN_BYTES = 4_000_000_000


def memory_folder() -> Path:
    """Return a folder whose files stay in memory, or the usual one if it cannot be used.

    A crash of a process loses nothing there, and nobody waits for the disk.
    """
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _MIN_BYTES:
        return TEMPORARY
    runs_programs = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    return _MEMORY if runs_programs else TEMPORARY
