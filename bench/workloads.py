"""The handlers' work, the same for every contender: one statement in a transaction."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

from bench.contenders.interface import ContenderConfig
from bench.deliveries import ACCOUNTS
from bench.processes import TrialFailed

INSERT, UPDATE = WORKLOADS = ("insert", "update")

# No constraint that would hide a handler which ran twice.
_POSTGRES_TABLES = f"""
CREATE TABLE bookings (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL,
    account integer NOT NULL,
    amount integer NOT NULL
);
CREATE TABLE accounts (id integer PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO accounts SELECT number, 0 FROM generate_series(0, {ACCOUNTS - 1}) AS number;
"""
_SQLITE_TABLES = f"""
CREATE TABLE bookings (
    id integer PRIMARY KEY,
    event_id text NOT NULL,
    account integer NOT NULL,
    amount integer NOT NULL,
    at text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL);
WITH RECURSIVE numbers (number) AS (
    SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < {ACCOUNTS - 1}
)
INSERT INTO accounts SELECT number, 0 FROM numbers;
"""

# With named parameters, for Onceward, SQLAlchemy and sqlite3.
STATEMENTS = {
    INSERT: (
        "INSERT INTO bookings (event_id, account, amount) VALUES (:event_id, :account, :amount)"
    ),
    UPDATE: "UPDATE accounts SET balance = balance + :amount WHERE id = :account",
}
PSYCOPG_STATEMENTS = {
    INSERT: (
        "INSERT INTO bookings (event_id, account, amount) "
        "VALUES (%(event_id)s, %(account)s, %(amount)s)"
    ),
    UPDATE: "UPDATE accounts SET balance = balance + %(amount)s WHERE id = %(account)s",
}
ASYNCPG_STATEMENTS = {
    INSERT: "INSERT INTO bookings (event_id, account, amount) VALUES ($1, $2, $3)",
    UPDATE: "UPDATE accounts SET balance = balance + $2 WHERE id = $1",
}

# Each event adds one to a balance, so the sum is the number of committed handlers.
_COUNTS = {
    INSERT: "SELECT count(*) FROM bookings",
    UPDATE: "SELECT coalesce(sum(balance), 0) FROM accounts",
}
_COMMIT_TIMES = {
    "postgres": "SELECT event_id, extract(epoch FROM pg_xact_commit_timestamp(xmin)) FROM bookings",
    "sqlite": "SELECT event_id, (julianday(at) - 2440587.5) * 86400.0 FROM bookings",
}


def parameters(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named parameters of both statements."""
    return {"event_id": event["id"], "account": event["account"], "amount": event["amount"]}


def asyncpg_parameters(workload: str, event: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the positional parameters of a workload's statement."""
    account = event["account"], event["amount"]
    return (event["id"], *account) if workload == INSERT else account


def count_query(workload: str) -> str:
    """Return the query that counts the committed handlers of a workload."""
    return _COUNTS[workload]


def begin_job(config: ContenderConfig) -> float:
    """Record that a job has started, and return how long it takes."""
    if config.started_file:
        with Path(config.started_file).open("ab") as file:
            file.write(b".")
    return config.job_seconds


def is_sqlite(database: str) -> bool:
    """Return whether a database URL names a SQLite file."""
    return database.startswith("sqlite:")


def sqlite_file(database: str) -> str:
    """Return the file of a URL like sqlite:///name."""
    return database.removeprefix("sqlite:///")


def create_handler_tables(database: str) -> None:
    """Create the tables that the handlers write to."""
    if is_sqlite(database):
        with sqlite3.connect(sqlite_file(database)) as file:
            file.executescript(_SQLITE_TABLES)
        file.close()
        return
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_POSTGRES_TABLES)


class CommittedWork:
    """The handlers' commits, read directly from the database."""

    def __init__(self, database: str) -> None:
        self._connection: psycopg.Connection | sqlite3.Connection
        self._store = "sqlite" if is_sqlite(database) else "postgres"
        if is_sqlite(database):
            self._connection = sqlite3.connect(sqlite_file(database), timeout=10)
        else:
            self._connection = psycopg.connect(database, autocommit=True)

    @classmethod
    @contextmanager
    def open(cls, database: str) -> Iterator[Self]:
        """Connect, and disconnect at the end."""
        committed = cls(database)
        try:
            yield committed
        finally:
            committed._connection.close()

    @property
    def backend_pid(self) -> int | None:
        """The server's process for this connection; SQLite has none."""
        if isinstance(self._connection, sqlite3.Connection):
            return None
        return self._connection.info.backend_pid

    def count(self, workload: str) -> int:
        """Return how many handlers committed."""
        return int(self.rows(count_query(workload))[0][0])

    def clear(self) -> None:
        """Delete the inserted rows: counting them takes longer the more there are."""
        self._connection.execute("TRUNCATE bookings")

    def runs_by_event(self) -> dict[str, int]:
        """Return how often each event's handler committed."""
        return dict(self.rows("SELECT event_id, count(*) FROM bookings GROUP BY event_id"))

    def require_single_runs(self) -> None:
        """Raise TrialFailed if the handler of an event committed more than once."""
        repeated = [event_id for event_id, runs in self.runs_by_event().items() if runs > 1]
        if repeated:
            raise TrialFailed(f"{len(repeated):,} events ran more than once: {repeated[0]}, …")

    def commit_times(self) -> dict[str, float]:
        """Return when each event's handler committed, in seconds since the epoch.

        PostgreSQL keeps the time of every commit. On SQLite it is the time of the insert. Raises
        TrialFailed if an event has two times.
        """
        rows = self.rows(_COMMIT_TIMES[self._store])
        times = {event_id: float(at) for event_id, at in rows}
        if len(times) < len(rows):
            raise TrialFailed(f"{len(rows) - len(times):,} commits repeat an event")
        return times

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, all of one snapshot."""
        return self._connection.execute(query).fetchall()
