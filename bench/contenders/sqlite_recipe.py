"""On SQLite: FastAPI, INSERT … ON CONFLICT, and a loop, all on one writing thread.

WAL and synchronous=FULL, so that a 2xx is as durable as it is with the others.
"""

import asyncio
import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.contenders.empty import run
from bench.contenders.interface import Place
from bench.contenders.recipe import application
from bench.deliveries import EVENT_TYPE, body, random_ids
from bench.effects import STATEMENTS, make_tables, parameters, sqlite_file

IDLE_SECONDS = 0.01

TABLE = """
CREATE TABLE events (
    number integer PRIMARY KEY,
    id text NOT NULL UNIQUE,
    type text NOT NULL,
    body blob NOT NULL,
    done_at text
);
CREATE INDEX events_to_do ON events (number) WHERE done_at IS NULL;
"""
INSERT = "INSERT INTO events (id, type, body) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
CLAIM = "SELECT number, body FROM events WHERE done_at IS NULL ORDER BY number LIMIT ?"
DONE = "UPDATE events SET done_at = datetime('now') WHERE number = ?"


class Program:
    """One connection, used by one thread."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def prepare(self) -> None:
        """Make the table of events, and the handler's."""
        connection = self._open()
        connection.executescript(TABLE)
        connection.close()
        make_tables(self._place.database)

    def serve(self) -> None:
        """Receive until killed."""
        writer = ThreadPoolExecutor(1)
        connection = self._open()

        async def keep(event: dict[str, Any], content: bytes) -> None:
            row = (event["id"], event["type"], content)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(writer, connection.execute, INSERT, row)

        run(application(keep), self._place.port)

    def work(self) -> None:
        """Work until killed; after a failed batch, run as many events one by one."""
        connection = self._open()
        singles = 0
        while True:
            limit = 1 if singles else self._place.batch_size
            try:
                count = self._run_batch(connection, limit)
            except Exception:
                if limit == 1:
                    raise
                connection.execute("ROLLBACK")
                singles = limit
                continue
            singles = max(0, singles - count)
            if not count:
                time.sleep(IDLE_SECONDS)  # SQLite has no notifications

    def _run_batch(self, connection: sqlite3.Connection, limit: int) -> int:
        """Claim and run up to `limit` events in one transaction; return how many there were."""
        statement = STATEMENTS[self._place.workload]
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(CLAIM, (limit,)).fetchall()
        for number, content in rows:
            connection.execute(statement, parameters(json.loads(content)))
            connection.execute(DONE, (number,))
        connection.execute("COMMIT")
        return len(rows)

    def fill(self, count: int) -> None:
        """Insert all in one transaction."""
        connection = self._open()
        ids = enumerate(random_ids(count, count))
        rows = ((event_id, EVENT_TYPE, body(event_id, number)) for number, event_id in ids)
        connection.execute("BEGIN")
        connection.executemany(INSERT, rows)
        connection.execute("COMMIT")
        connection.close()

    def received(self) -> set[str]:
        """What the table holds."""
        return {event_id for (event_id,) in self._open().execute("SELECT id FROM events")}

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            sqlite_file(self._place.database),
            timeout=30,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection
