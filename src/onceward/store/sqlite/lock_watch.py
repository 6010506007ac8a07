"""The write lock of the file while another connection holds it."""

from __future__ import annotations

import sqlite3
from typing import Final

LOCKED: Final = (
    "database is locked: another connection holds the write lock of the SQLite file. If a handler "
    "opens the file itself, use tx instead; else end the transaction of the other program"
)
"""The reason of a write that fails. No quotes: values in quotes are masked in error texts."""

_WARNING: Final = (
    "No event can be recorded and no handler can run: another connection holds the write lock of "
    "the SQLite file. If a handler opens the file itself, use tx instead; the log has the details."
)


class LockWatch:
    """Begins the write transactions, and remembers whether the last one found the file locked.

    All writes of a serving process use one connection, so the lock that stops a BEGIN is never its
    own: it belongs to another program, or to a connection that a handler opened.
    """

    def __init__(self) -> None:
        self._is_locked = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warning while writes fail. It is public: it names neither the file nor a handler."""
        return (_WARNING,) if self._is_locked else ()

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a write transaction. Raise sqlite3.Error."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            self._is_locked = is_locked(error)
            raise
        self._is_locked = False


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another connection's lock caused an error."""
    code = getattr(error, "sqlite_errorcode", 0)  # sqlite3's own errors have none
    return code & 0xFF == sqlite3.SQLITE_BUSY
