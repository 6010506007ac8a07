"""The databases of a run: one server for all contenders, and a fresh copy for each trial."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self

import psycopg

from bench.registry import POSTGRES
from bench.workloads import sqlite_file
from support.memory import TEMPORARY
from support.postgres import Cluster

# Sized for production; the tests' server is small. The time of each commit gives exact latencies.
PRODUCTION = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
    "track_commit_timestamp": "on",
}
DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")


class Databases(AbstractContextManager["Databases"], Protocol):
    """The databases in which contenders store their data."""

    def create(self) -> str:
        """Create an empty database and return its URL."""

    def copy(self, template: str) -> str:
        """Copy a database that has no connections, and return the copy's URL."""

    def drop(self, database: str) -> None:
        """Drop a database together with its connections."""

    def settle(self, database: str) -> None:
        """Vacuum, analyze and checkpoint: the state in which a trial on a copy starts."""

    def checkpoint(self, database: str) -> None:
        """Flush all changes to the data files."""

    def crash(self) -> None:
        """Crash and restart the server; SQLite has none."""

    def describe(self) -> dict[str, str]:
        """Return the version and the settings that affect the results."""

    def server_pids(self) -> Sequence[int]:
        """Return the processes of the server, its main process first; SQLite has none."""


class PostgresDatabases:
    """Databases of one PostgreSQL server, which lives as long as the run."""

    def __init__(self, folder: Path = TEMPORARY) -> None:
        self._server = Cluster(folder, settings=PRODUCTION)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def create(self) -> str:
        """Create an empty database and return its URL."""
        return self._server.create_database()

    def copy(self, template: str) -> str:
        """Copy a database that has no connections, and return the copy's URL."""
        return self._server.create_database(template)

    def drop(self, database: str) -> None:
        """Drop a database together with its connections."""
        self._server.drop(database)

    def settle(self, database: str) -> None:
        """Vacuum, analyze and checkpoint."""
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")
        os.sync()  # the copy's pages must not be written back during a measurement

    def checkpoint(self, database: str) -> None:
        """Flush all changes to the data files."""
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    def crash(self) -> None:
        """Stop the server in immediate mode and start it again."""
        self._server.crash()
        self._server.start()

    def server_pids(self) -> Sequence[int]:
        """Return the processes of the server, the postmaster first."""
        return self._server.pids

    def describe(self) -> dict[str, str]:
        """Return the server's version and settings."""
        with psycopg.connect(self._server.url("postgres")) as connection:
            values = {
                name: connection.execute(f"SHOW {name}").fetchone()
                for name in ("server_version", *DURABILITY, *PRODUCTION)
            }
        return {"store": "PostgreSQL"} | {name: row[0] for name, row in values.items() if row}


class SqliteDatabases:
    """SQLite files in a temporary folder."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="onceward-bench-"))
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def create(self) -> str:
        """Return the URL of a file that does not exist yet."""
        self._count += 1
        return f"sqlite:///{self._folder / f'{self._count}.db'}"

    def copy(self, template: str) -> str:
        """Copy a file that has no connections, and return the copy's URL."""
        copy = self.create()
        with (
            sqlite3.connect(sqlite_file(template)) as old,
            sqlite3.connect(sqlite_file(copy)) as new,
        ):
            old.backup(new)
        old.close()
        new.close()
        return copy

    def drop(self, database: str) -> None:
        """Delete the file, its WAL and its lock files."""
        for file in self._folder.glob(f"{Path(sqlite_file(database)).name}*"):
            file.unlink()

    def settle(self, database: str) -> None:
        """Checkpoint the WAL."""
        self.checkpoint(database)

    def checkpoint(self, database: str) -> None:
        """Move the WAL into the file."""
        connection = sqlite3.connect(sqlite_file(database))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def crash(self) -> None:
        """Do nothing: SQLite has no server."""

    def server_pids(self) -> Sequence[int]:
        """Return no process: SQLite has no server."""
        return ()

    def describe(self) -> dict[str, str]:
        """Return SQLite's version."""
        return {"store": "SQLite", "server_version": sqlite3.sqlite_version}


def open_databases(store: str) -> Databases:
    """Return the databases for a run on one store."""
    return PostgresDatabases() if store == POSTGRES else SqliteDatabases()
