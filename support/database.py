"""Direct SQL access to the tables of either database, without the store.

Statements name tables as on PostgreSQL, ``onceward.jobs``.
"""

import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg

Row = tuple[Any, ...]

STREAM_ROWS = 5_000


class RawDatabase:
    """One database, by its URL. Each call uses a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite:")

    def rows(self, statement: str) -> list[Row]:
        """Run a statement and return its rows, if it produces any."""
        with self.connection() as connection:
            cursor = connection.execute(self.in_dialect(statement))
            rows: list[Row] = cursor.fetchall() if cursor.description else []
        return rows

    def stream(self, statement: str) -> Iterator[Row]:
        """Yield the rows of a query without holding all of them in memory."""
        with self.connection() as connection:
            # On PostgreSQL only a named cursor leaves the rows on the server.
            cursor = connection.cursor() if self.is_sqlite else connection.cursor("stream")
            with closing(cursor):
                cursor.execute(self.in_dialect(statement))
                while chunk := cursor.fetchmany(STREAM_ROWS):
                    yield from chunk

    def value(self, statement: str) -> Any:
        """Run a query for a single value and return it."""
        ((value,),) = self.rows(statement)
        return value

    def count(self, table: str) -> int:
        """Return the number of rows in a table."""
        return int(self.value(f"SELECT count(*) FROM {table}"))  # noqa: S608 - no outside input

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Open a connection; commit at the end, or roll back on an exception."""
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
        """Expire every lease, as if its worker had stopped renewing it."""
        self.rows(f"UPDATE onceward.leases SET until = {self.past}")  # noqa: S608 - no outside input

    def add_lease(self, jobs: Sequence[int], guarded: Sequence[int] = ()) -> None:
        """Lease jobs, as a claim does."""
        named = [f"[{', '.join(map(str, ids))}]" for ids in (jobs, guarded)]
        named = [f"'{ids}'" if self.is_sqlite else f"ARRAY{ids}::bigint[]" for ids in named]
        until = "9000000000000000" if self.is_sqlite else "now() + interval '1 hour'"
        self.rows(
            "INSERT INTO onceward.leases (token, worker, until, jobs, guarded) "  # noqa: S608 - no outside input
            f"VALUES ('token-of-a-test', 'worker-of-a-test', {until}, {', '.join(named)})"
        )

    def make_due(self) -> None:
        """Make every waiting job due now."""
        self.rows(f"UPDATE onceward.jobs SET available_at = {self.now}")  # noqa: S608 - no outside input

    def postpone(self, jobs: Collection[int]) -> None:
        """Make waiting jobs due in a quarter of an hour, however slow the test is."""
        delay = "900000000" if self.is_sqlite else "interval '15 minutes'"
        later, ids = f"{self.now} + {delay}", ", ".join(map(str, jobs))
        self.rows(f"UPDATE onceward.jobs SET available_at = {later} WHERE id IN ({ids})")  # noqa: S608 - no outside input

    @property
    def now(self) -> str:
        """Return an SQL expression for the present."""
        return str(time.time_ns() // 1_000) if self.is_sqlite else "clock_timestamp()"

    @property
    def past(self) -> str:
        """Return an SQL expression for a time long ago."""
        return "1" if self.is_sqlite else "timestamptz '2001-01-01'"

    def reject_inserts_of(self, event_id: str) -> None:
        """Make every insert of one event fail, as a trigger of the user's could."""
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

    def accept_inserts(self) -> None:
        """Undo `reject_inserts_of`."""
        self.rows("DROP TRIGGER poison" + ("" if self.is_sqlite else " ON onceward.events"))

    def in_dialect(self, statement: str) -> str:
        """Return a statement as this database takes it."""
        return statement.replace("onceward.", "onceward_") if self.is_sqlite else statement
