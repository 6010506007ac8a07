"""What the handlers do, the same for every contender: one statement in a transaction."""

import sqlite3
from collections.abc import Mapping
from typing import Any

import psycopg

from bench.deliveries import ACCOUNTS

# No constraint that would hide an effect which happens twice.
POSTGRES_TABLES = f"""
CREATE TABLE bookings (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL,
    account integer NOT NULL,
    amount integer NOT NULL
);
CREATE TABLE accounts (id integer PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO accounts SELECT number, 0 FROM generate_series(0, {ACCOUNTS - 1}) AS number;
"""
SQLITE_TABLES = f"""
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

INSERT, UPDATE = WORKLOADS = ("insert", "update")

# With named parameters as Onceward and SQLAlchemy write them.
STATEMENTS = {
    INSERT: (
        "INSERT INTO bookings (event_id, account, amount) VALUES (:event_id, :account, :amount)"
    ),
    UPDATE: "UPDATE accounts SET balance = balance + :amount WHERE id = :account",
}
# As psycopg writes them.
PSYCOPG_STATEMENTS = {
    INSERT: (
        "INSERT INTO bookings (event_id, account, amount) "
        "VALUES (%(event_id)s, %(account)s, %(amount)s)"
    ),
    UPDATE: "UPDATE accounts SET balance = balance + %(amount)s WHERE id = %(account)s",
}
# As asyncpg writes them.
ASYNCPG_STATEMENTS = {
    INSERT: "INSERT INTO bookings (event_id, account, amount) VALUES ($1, $2, $3)",
    UPDATE: "UPDATE accounts SET balance = balance + $2 WHERE id = $1",
}

# Each event adds one to a balance: the sum is how many handlers were committed.
_COUNTS = {
    INSERT: "SELECT count(*) FROM bookings",
    UPDATE: "SELECT coalesce(sum(balance), 0) FROM accounts",
}


def parameters(event: Mapping[str, Any]) -> dict[str, Any]:
    """What the statements want of a payload."""
    return {"event_id": event["id"], "account": event["account"], "amount": event["amount"]}


def asyncpg_parameters(workload: str, event: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the positional parameters of a workload's statement."""
    account = event["account"], event["amount"]
    return (event["id"], *account) if workload == INSERT else account


def make_tables(database: str) -> None:
    """Make the tables that the handlers write to."""
    if database.startswith("sqlite:"):
        with sqlite3.connect(sqlite_file(database)) as file:
            file.executescript(SQLITE_TABLES)
        file.close()
        return
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(POSTGRES_TABLES)


def sqlite_file(database: str) -> str:
    """The file of an address like sqlite:///name."""
    return database.removeprefix("sqlite:///")


class Effects:
    """Looks at what was committed, past whoever did it."""

    def __init__(self, database: str) -> None:
        self._connection: psycopg.Connection | sqlite3.Connection
        if database.startswith("sqlite:"):
            self._connection = sqlite3.connect(sqlite_file(database), timeout=10)
        else:
            self._connection = psycopg.connect(database, autocommit=True)

    def count(self, workload: str) -> int:
        """How many handlers were committed."""
        return int(self.rows(_COUNTS[workload])[0][0])

    def clear(self) -> None:
        """Forget them."""
        self._connection.execute("TRUNCATE bookings")

    def by_event(self) -> dict[str, int]:
        """How often each event was booked."""
        return dict(self.rows("SELECT event_id, count(*) FROM bookings GROUP BY event_id"))

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._connection.execute(statement).fetchall()

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()
