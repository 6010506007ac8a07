"""Errors of a database for which no statement is to blame."""

from __future__ import annotations

import sqlite3
from typing import Final

_DISK_FULL: Final = "53100"
_CONFLICTS: Final = ("40001", "40P01")
"""The SQLSTATEs of a serialization failure and of a deadlock."""


def is_disk_full(error: BaseException) -> bool:
    """Return whether a write found no space. It succeeds once there is some."""
    return (
        getattr(error, "sqlstate", None) == _DISK_FULL
        or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    )


def is_conflict(error: BaseException) -> bool:
    """Return whether the database ended a transaction in favour of another one."""
    return getattr(error, "sqlstate", None) in _CONFLICTS
