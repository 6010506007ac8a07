"""A look into the tables past the store, and a hand on them: one spelling for both databases.

Tables are written as on PostgreSQL, ``onceward.jobs``; times are compared through `Direct.past`.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

Row = tuple[Any, ...]


class RawDatabase:
    """A database without the store that owns its tables."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite:")

    def rows(self, statement: str) -> list[Row]:
        """Run a statement; answers with its rows, if it has any."""
        with self.connection() as connection:
            cursor = connection.execute(self.spelt(statement))
            found: list[Row] = cursor.fetchall() if cursor.description else []
        return found

    def value(self, statement: str) -> Any:
        """Run a statement that answers with one value."""
        ((value,),) = self.rows(statement)
        return value

    def count(self, table: str) -> int:
        """How many rows there are."""
        return int(self.value(f"SELECT count(*) FROM {table}"))  # noqa: S608 - a test's own name

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection of its own, which commits at the end."""
        connection: Any
        if self.is_sqlite:
            path = self.url.removeprefix("sqlite:///").partition("?")[0]
            connection = sqlite3.connect(path, timeout=5.0)
        else:
            connection = psycopg.connect(self.url)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def expire_leases(self) -> None:
        """Let every lease be over, as if its worker had been silent for too long."""
        self.rows(f"UPDATE onceward.leases SET until = {self.past}")  # noqa: S608 - our own

    def make_due(self) -> None:
        """Let the time come for every job that waits."""
        self.rows(f"UPDATE onceward.jobs SET available_at = {self.past}")  # noqa: S608 - our own

    @property
    def past(self) -> str:
        """A time long gone, as an expression."""
        return "1" if self.is_sqlite else "timestamptz '2001-01-01'"

    def refuse_events_called(self, event_id: str) -> None:
        """Make the database refuse to insert one event, as a trigger of the user's might."""
        head = "CREATE TRIGGER poison BEFORE INSERT ON onceward.events"
        when = f"NEW.event_id = '{event_id}'"
        if self.is_sqlite:
            self.rows(f"{head} WHEN {when} BEGIN SELECT RAISE(ABORT, 'poison'); END")
        else:
            self.rows(
                "CREATE FUNCTION onceward.poison() RETURNS trigger LANGUAGE plpgsql "
                "AS $$ BEGIN RAISE EXCEPTION 'poison'; END $$"
            )
            self.rows(f"{head} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION onceward.poison()")

    def cursor(self, connection: Any) -> Any:
        """A cursor that holds a part of its rows at a time."""
        return connection.cursor() if self.is_sqlite else connection.cursor("all")

    def spelt(self, statement: str) -> str:
        """A statement as this database wants it."""
        if self.is_sqlite:
            statement = statement.replace("onceward.", "onceward_")
        return statement
