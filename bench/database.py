"""The databases of a run: one server for all, a fresh copy for each measure."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self

import psycopg

from bench.effects import sqlite_file
from bench.field import POSTGRES
from support.postgres import Cluster

# As in production, where the tests' server is small. Durability is as the tests have it: all on.
# The time of each commit is kept, to say exactly when a handler was committed.
PRODUCTION = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "max_connections": "200",
    "track_commit_timestamp": "on",
}
DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


class Databases(AbstractContextManager["Databases"], Protocol):
    """Where contenders keep their data."""

    def create(self) -> str:
        """An empty database; answers with its address."""

    def copy(self, template: str) -> str:
        """A copy of a database that nobody uses."""

    def drop(self, database: str) -> None:
        """Remove it, whoever still uses it."""

    def settle(self, database: str) -> None:
        """Bring it into the state in which all start: analysed, and written out."""

    def checkpoint(self, database: str) -> None:
        """Write out what is in memory."""

    def crash(self) -> None:
        """Die at once and come back, where the store is a process of its own."""

    def facts(self) -> dict[str, str]:
        """What it is, and the settings that matter."""


class PostgresDatabases:
    """Databases of one PostgreSQL server, which lives as long as the run."""

    def __init__(self) -> None:
        self._server = Cluster(settings=PRODUCTION)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def create(self) -> str:
        """An empty database."""
        return self._server.create_database()

    def copy(self, template: str) -> str:
        """A copy of a database that nobody uses."""
        return self._server.create_database(template)

    def drop(self, database: str) -> None:
        """Remove it."""
        self._server.drop(database)

    def settle(self, database: str) -> None:
        """VACUUM, ANALYZE and CHECKPOINT."""
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")
        os.sync()  # what was copied or filled is not to be written while something is measured

    def checkpoint(self, database: str) -> None:
        """CHECKPOINT."""
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    def crash(self) -> None:
        """As `pg_ctl stop -m immediate`, and recovery."""
        self._server.crash()
        self._server.start()

    def facts(self) -> dict[str, str]:
        """Its version and the settings that matter."""
        with psycopg.connect(self._server.url("postgres")) as connection:
            shown = {
                name: connection.execute(f"SHOW {name}").fetchone()
                for name in ("server_version", *DURABLE, *PRODUCTION)
            }
        return {"store": "PostgreSQL"} | {name: row[0] for name, row in shown.items() if row}


class SqliteDatabases:
    """Files in a folder of their own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="onceward-bench-"))
        self._made = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def create(self) -> str:
        """A file that does not exist yet."""
        self._made += 1
        return f"sqlite:///{self._folder / f'{self._made}.db'}"

    def copy(self, template: str) -> str:
        """A copy of a file that nobody uses."""
        made = self.create()
        with (
            sqlite3.connect(sqlite_file(template)) as old,
            sqlite3.connect(sqlite_file(made)) as new,
        ):
            old.backup(new)
        old.close()
        new.close()
        return made

    def drop(self, database: str) -> None:
        """Remove the file and what lies beside it."""
        for file in self._folder.glob(f"{Path(sqlite_file(database)).name}*"):
            file.unlink()

    def settle(self, database: str) -> None:
        """Write the log into the file."""
        self.checkpoint(database)

    def checkpoint(self, database: str) -> None:
        """Write the log into the file."""
        connection = sqlite3.connect(sqlite_file(database))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def crash(self) -> None:
        """There is no process but the contender's own."""

    def facts(self) -> dict[str, str]:
        """Its version."""
        return {"store": "SQLite", "server_version": sqlite3.sqlite_version}


def open_databases(store: str) -> Databases:
    """A place for the databases of a run."""
    return PostgresDatabases() if store == POSTGRES else SqliteDatabases()
