"""A hand-written inbox on SQLite: FastAPI with one writer thread, and a worker loop.

WAL and synchronous=FULL, so that a 2xx is as durable as Onceward's. The loop is a thread of the
server, which wakes it, or a process of its own, which polls.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any

from bench.contenders.endpoint import make_app
from bench.contenders.interface import ContenderConfig
from bench.contenders.server import run_server
from bench.deliveries import EVENT_TYPE, make_body, random_ids
from bench.workloads import STATEMENTS, create_handler_tables, parameters, sqlite_file

IDLE_SECONDS = 0.01

TABLE = """
CREATE TABLE events (
    number integer PRIMARY KEY,
    id text NOT NULL UNIQUE,
    type text NOT NULL,
    body blob NOT NULL,
    done_at text
);
CREATE INDEX events_queued ON events (number) WHERE done_at IS NULL;
"""
INSERT = "INSERT INTO events (id, type, body) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
# Claims and marks at once: a rollback undoes the mark.
CLAIM = """
UPDATE events SET done_at = datetime('now') WHERE number IN (
    SELECT number FROM events WHERE done_at IS NULL ORDER BY number LIMIT ?
)
RETURNING number, body
"""


class Program:
    """One connection to receive, and one to work."""

    def __init__(self, config: ContenderConfig) -> None:
        self._config = config
        self._arrival = Event()
        # SQLite has one writer: a thread that finds it busy would sleep, and try again later.
        self._writing = Lock()

    def create_tables(self) -> None:
        """Create the table of events and the handler's tables."""
        connection = self._connect()
        connection.executescript(TABLE)
        connection.close()
        create_handler_tables(self._config.database)

    def serve(self) -> None:
        """Receive until killed; run handlers too if `has_worker` is set."""
        writer = ThreadPoolExecutor(1)
        connection = self._connect()

        def insert(row: tuple[Any, ...]) -> None:
            with self._writing:
                connection.execute(INSERT, row)
            self._arrival.set()

        async def store(event: dict[str, Any], body: bytes) -> None:
            row = (event["id"], event["type"], body)
            await asyncio.get_running_loop().run_in_executor(writer, insert, row)

        if self._config.has_worker:
            Thread(target=self.work, daemon=True).start()
        run_server(make_app(store), self._config.port)

    def work(self) -> None:
        """Run handlers until killed; after a failed batch, run as many events one by one."""
        connection = self._connect()
        singles = 0
        while True:
            self._arrival.clear()
            limit = 1 if singles else self._config.batch_size
            try:
                count = self._run_batch(connection, limit)
            except Exception:
                if limit == 1:
                    raise
                singles = limit
                continue
            singles = max(0, singles - count)
            if not count:
                # SQLite has no notifications: a loop in a process of its own polls.
                self._arrival.wait(IDLE_SECONDS)

    def enqueue(self, count: int) -> None:
        """Queue events in one transaction."""
        connection = self._connect()
        ids = enumerate(random_ids(count, seed=count))
        rows = ((event_id, EVENT_TYPE, make_body(event_id, number)) for number, event_id in ids)
        connection.execute("BEGIN")
        connection.executemany(INSERT, rows)
        connection.execute("COMMIT")
        connection.close()

    def received_ids(self) -> set[str]:
        """Return the event ids in the table."""
        return {event_id for (event_id,) in self._connect().execute("SELECT id FROM events")}

    def _run_batch(self, connection: sqlite3.Connection, limit: int) -> int:
        """Run up to `limit` events in one transaction, and return how many there were."""
        statement = STATEMENTS[self._config.workload]
        with self._writing, _transaction(connection):
            rows = connection.execute(CLAIM, (limit,)).fetchall()
            for _, body in sorted(rows):  # RETURNING keeps no order
                connection.execute(statement, parameters(json.loads(body)))
        return len(rows)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            sqlite_file(self._config.database),
            timeout=30,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
